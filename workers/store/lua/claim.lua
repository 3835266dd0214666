-- Claim attempts: is each still wanted, and by nobody else?
--
-- KEYS: those of ledger.lua, then records, errors, deaths (hash: index -> count)
-- ARGV: lease ms, round, quarantine (0/1), estimate, unseen (0/1: nobody here has seen what the model costs, so the
--       estimate is the most it may be), owner, index...
-- An owner that asks again for what it holds gets the same token: its first answer was lost on the way.
-- For each index it returns {code, token, deliveries, errors, wait ms or, of go, the run's generation}:
--   go, final, held, halted, quarantine, poison, full, budget (see Claim in claims.py)
local now, RECORDS, ERRORS, DEATHS = milliseconds(), unpack(KEYS, 6, 8)
local lease, round, quarantine = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3] == '1'
local estimate, unseen, me = tonumber(ARGV[4]), ARGV[5] == '1', ARGV[6]
local state = redis.call('HMGET', STATE, 'halt', 'sealed', 'budget', 'spent', 'reserved', 'assumed', 'generation',
  'token')
local gone = state[1] == false and state[2] == false
local halted = gone or (state[1] and state[1] ~= '') or state[2] == '1'
local budget = tonumber(state[3] or '')
-- Ten cents ten times are a hair more than a dollar: rounding must not refuse the last attempt.
local limit = budget and budget * (1 + 1e-9)
local spent, reserved = tonumber(state[4] or 0) + tonumber(state[6] or 0), tonumber(state[5] or 0)
local answers, counted, token = {}, false, tonumber(state[8] or 0)
local anybody_died = redis.call('EXISTS', DEATHS) == 1

-- What is reserved by attempts that are really in flight. Adding and taking away leaves traces of rounding, and
-- those of a dead worker are in flight no longer; each is assumed once.
local function live_reserves()
  local sum = 0
  for _, index in ipairs(redis.call('ZRANGE', CLAIMS, 0, -1)) do
    if tonumber(redis.call('ZSCORE', CLAIMS, index)) > now then
      local _, reserve = holder(index)
      sum = sum + reserve
    else
      spent = spent + assume_held(index)
    end
  end
  redis.call('HSET', STATE, 'reserved', sum)
  return sum
end

local function go(its_token, deaths, errors)
  return {'go', its_token, 1 + deaths + errors, errors, tonumber(state[7] or 0)}
end

local function claim(index)
  if halted then return {'halted'} end
  local errors = 0
  if redis.call('HEXISTS', RECORDS, index) == 1 then
    local error = redis.call('HGET', ERRORS, index)
    if not error then return {'final'} end
    local count, last = error:match('^(%d+) (%d+)')
    if tonumber(last) >= round then return {'final'} end
    errors = tonumber(count)
  end
  local deaths = anybody_died and tonumber(redis.call('HGET', DEATHS, index) or 0) or 0
  local expiry = tonumber(redis.call('ZSCORE', CLAIMS, index) or 0)
  if expiry > 0 then
    local its_token, reserve, owner = holder(index)
    if expiry > now and owner == me then return go(tonumber(its_token), deaths, errors) end
    if expiry > now then return {'held', 0, 0, 0, expiry - now} end
    -- The holder vanished: its lease ran out and it stored nothing.
    deaths = redis.call('HINCRBY', DEATHS, index, 1)
    anybody_died = true
    release(index, reserve)
    assume(its_token, reserve)
    reserved, spent = reserved - reserve, spent + reserve
  end
  if quarantine then
    if deaths > 2 then
      token = token + 1
      return {'poison', token, 1 + deaths + errors, errors}
    end
  elseif deaths >= 2 then
    return {'quarantine'}
  end
  if budget and spent + reserved + estimate > limit then
    if not counted then reserved, counted = live_reserves(), true end
    -- What is in flight may cost less than was reserved for it; only then is it known what is left.
    if reserved > 0 and spent + reserved + estimate > limit then return {'full'} end
  end
  local reserve = estimate
  if budget and spent + reserved + estimate > limit then
    -- The longest answer would cost too much, but most are far shorter: one goes alone, and shows what they cost.
    if not unseen or spent >= budget then
      redis.call('HSET', STATE, 'halt', 'over_budget')
      halted = true
      return {'budget'}
    end
    reserve = budget - spent
  end
  token = token + 1
  hold(index, token, reserve, me, now + lease)
  reserved = reserved + reserve
  return go(token, deaths, errors)
end

for i = 7, #ARGV do answers[i - 6] = claim(ARGV[i]) end
if token > tonumber(state[8] or 0) then redis.call('HSET', STATE, 'token', token) end
keep(KEYS, not halted)
return answers
