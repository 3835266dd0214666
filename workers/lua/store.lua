-- Store records: the first one counts, a later success replaces an error, everything else is waste.
--
-- KEYS: state, records, errors (hash: index -> "count round token cost arm"), claims, owners, counts, passed
-- ARGV: units, then seven for each record: index, token, round, outcome, cost ('' if unknown), arm, payload
-- For each record it returns stored, replaced, duplicate or late.
local units = tonumber(ARGV[1])
local sealed = redis.call('HGET', KEYS[1], 'sealed') == '1'
local exists = redis.call('EXISTS', KEYS[1]) == 1
local answers = {}

local function waste(cost)
  redis.call('HINCRBY', KEYS[1], 'wasted_attempts', 1)
  if cost ~= '' then redis.call('HINCRBYFLOAT', KEYS[1], 'wasted', cost) end
end

local function release(index, token)
  local owner = redis.call('HGET', KEYS[5], index)
  if not owner then return 0 end
  local held, reserve = owner:match('^(%d+) (%S+)')
  if held ~= token then return 0 end
  redis.call('HDEL', KEYS[5], index)
  redis.call('ZREM', KEYS[4], index)
  if tonumber(reserve) > 0 then redis.call('HINCRBYFLOAT', KEYS[1], 'reserved', -tonumber(reserve)) end
  return tonumber(reserve)
end

local function store(index, token, round, outcome, cost, arm, payload)
  local reserve = release(index, token)
  local present = redis.call('HGET', KEYS[2], index)
  if present == payload then return 'stored' end -- sent again because the first answer was lost on the way
  if cost ~= '' then
    redis.call('HINCRBYFLOAT', KEYS[1], 'spent', cost)
  elseif reserve > 0 and outcome ~= 'error' then
    -- An answer that came too late is billed all the same; of what it cost we know only the estimate.
    redis.call('HINCRBYFLOAT', KEYS[1], 'assumed', reserve)
  end
  if sealed then waste(cost); return 'late' end
  local answer, count = 'stored', 0
  if present then
    local error = redis.call('HGET', KEYS[3], index)
    if not error then waste(cost); return 'duplicate' end
    local errors, _, last, old_cost, old_arm = error:match('^(%d+) (%d+) (%d+) (%S*) (%S*)')
    if tonumber(last) >= tonumber(token) then waste(cost); return 'duplicate' end
    answer, count = 'replaced', tonumber(errors)
    waste(old_cost)
    redis.call('HDEL', KEYS[3], index)
    redis.call('HINCRBY', KEYS[6], old_arm .. ' error', -1)
  end
  redis.call('HSET', KEYS[2], index, payload)
  redis.call('HINCRBY', KEYS[6], arm .. ' ' .. outcome, 1)
  if outcome == 'error' then
    redis.call('HSET', KEYS[3], index, table.concat({count + 1, round, token, cost, arm}, ' '))
  elseif outcome == 'passed' and units > 0 then
    redis.call('SADD', KEYS[7], tonumber(index) % units)
  end
  return answer
end

for i = 2, #ARGV, 7 do
  if exists then
    answers[#answers + 1] = store(unpack(ARGV, i, i + 6))
  else
    answers[#answers + 1] = 'late'
  end
end
return answers
