-- The money of a run, by token: each start of an attempt has one of its own. Read before the scripts that move money.
--
-- KEYS: state (with the sums reserved, spent, assumed and wasted, and the last token), claims (zset: index -> expiry ms),
--       owners (hash: index -> "token reserve owner"), assumed (hash: token -> USD), billed (a bit for each token)
-- Money goes one way. It is reserved beside the claim; billed when a record comes, once however often it is sent; or
-- assumed to be spent when whoever asked is gone, until the bill comes after all.
local STATE, CLAIMS, OWNERS, ASSUMED, BILLED = unpack(KEYS, 1, 5)

local function milliseconds()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

local function add(name, amount)
  if amount ~= 0 then redis.call('HINCRBYFLOAT', STATE, name, amount) end
end

local function holder(index)
  local token, reserve, owner = (redis.call('HGET', OWNERS, index) or ''):match('^(%d+) (%S+) (.*)$')
  return token, tonumber(reserve or 0), owner
end

local function hold(index, token, reserve, owner, expiry)
  redis.call('ZADD', CLAIMS, expiry, index)
  redis.call('HSET', OWNERS, index, token .. ' ' .. reserve .. ' ' .. owner)
  add('reserved', reserve)
end

-- End a claim, whoever has it, with what it has reserved.
local function release(index, reserve)
  redis.call('ZREM', CLAIMS, index)
  redis.call('HDEL', OWNERS, index)
  add('reserved', -reserve)
end

-- A run's keys live seven days from its last sign of life; to ask costs less than to set it every time.
local function keep(keys, goes_on)
  for _, key in ipairs(keys) do
    local left = redis.call('TTL', key)
    if left == -1 or (goes_on and left < 518400) then redis.call('EXPIRE', key, 604800) end
  end
end

local function assume(token, reserve)
  if reserve == 0 then return end
  add('assumed', reserve)
  redis.call('HINCRBYFLOAT', ASSUMED, token, reserve)
  keep({ASSUMED}, false)
end

-- Whoever holds this had asked, and vanished: the claim stays, and what was reserved is assumed.
local function assume_held(index)
  local token, reserve, owner = holder(index)
  if not token or reserve == 0 then return 0 end
  redis.call('HSET', OWNERS, index, token .. ' 0 ' .. owner)
  add('reserved', -reserve)
  assume(token, reserve)
  return reserve
end

-- False where the token was billed before and its claim has gone: a server that lost its last writes gives a token twice.
-- Each call of unknown cost counts with what was reserved.
local function bill(token, cost, unpriced, reserve, held, has_assumed)
  if redis.call('SETBIT', BILLED, token, 1) == 1 and not held then return false end
  local assumed = has_assumed and tonumber(redis.call('HGET', ASSUMED, token) or 0) or 0
  if assumed > 0 then
    redis.call('HDEL', ASSUMED, token)
    add('assumed', -assumed)
    reserve = assumed
  end
  add('spent', cost)
  add('assumed', unpriced * reserve)
  return true
end
