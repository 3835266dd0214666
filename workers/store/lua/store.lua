-- Store records: the first one counts, a later success replaces an error, everything else is waste.
--
-- KEYS: those of ledger.lua, then records, errors (hash: index -> "count round token lost arm"), counts,
--       failures (hash: unit of the baseline -> attempts that failed)
-- ARGV: nine for each record: index, token, round, outcome, cost, the part of it that is lost if the
--       record is replaced, calls of unknown cost, arm, payload
-- For each record it returns stored, replaced, duplicate or late.
local RECORDS, ERRORS, COUNTS, FAILURES = unpack(KEYS, 6, 9)
local sealed = redis.call('HGET', STATE, 'sealed') == '1'
local exists = redis.call('EXISTS', STATE) == 1
local weak = redis.call('HGET', STATE, 'weak')
local has_assumed = redis.call('EXISTS', ASSUMED) == 1
local answers, counts = {}, {}

local function count(arm, outcome, change)
  local name = arm .. ' ' .. outcome
  counts[name] = (counts[name] or 0) + change
end

-- A task that the baseline failed in all its attempts is lost for it. Once too many are, the verdict is an error
-- whatever else is paid for, and the run ends.
local function lose(index, arm)
  local baseline, all_units, attempts, too_many = weak:match('^(%d+) (%d+) (%d+) (%d+)$')
  if arm ~= baseline then return end
  local unit = tonumber(index) % tonumber(all_units)
  if redis.call('HINCRBY', FAILURES, unit, 1) < tonumber(attempts) then return end
  local lost = redis.call('HINCRBY', STATE, 'weak_lost', 1)
  if lost >= tonumber(too_many) and (redis.call('HGET', STATE, 'halt') or '') == '' then
    redis.call('HSET', STATE, 'halt', 'weak_baseline')
  end
end

local function waste(cost)
  redis.call('HINCRBY', STATE, 'wasted_attempts', 1)
  add('wasted', tonumber(cost) or 0)
end

local function store(index, token, round, outcome, cost, lost, unpriced, arm, payload)
  local its_token, reserve = holder(index)
  local held = its_token == token
  if held then release(index, reserve) else reserve = 0 end
  local present = redis.call('HGET', RECORDS, index)
  if not bill(token, tonumber(cost), tonumber(unpriced), reserve, held, has_assumed) then
    -- Sent again because the first answer was lost on the way.
    return present == payload and 'stored' or sealed and 'late' or 'duplicate'
  end
  if sealed then waste(cost); return 'late' end
  local answer, errors = 'stored', 0
  if present then
    local error = redis.call('HGET', ERRORS, index)
    if not error then waste(cost); return 'duplicate' end
    local earlier, _, last, old_lost, old_arm = error:match('^(%d+) (%d+) (%d+) (%S*) (%S*)')
    if tonumber(last) >= tonumber(token) then waste(cost); return 'duplicate' end
    answer, errors = 'replaced', tonumber(earlier)
    waste(old_lost)
    redis.call('HDEL', ERRORS, index)
    count(old_arm, 'error', -1)
  end
  redis.call('HSET', RECORDS, index, payload)
  count(arm, outcome, 1)
  if outcome == 'error' then
    redis.call('HSET', ERRORS, index, table.concat({errors + 1, round, token, lost, arm}, ' '))
  elseif outcome ~= 'passed' and weak then
    lose(index, arm)
  end
  return answer
end

for i = 1, #ARGV, 9 do
  if exists then
    answers[#answers + 1] = store(unpack(ARGV, i, i + 8))
  else
    answers[#answers + 1] = 'late'
  end
end
for name, change in pairs(counts) do redis.call('HINCRBY', COUNTS, name, change) end
keep(KEYS, exists and not sealed)
return answers
