-- Ask a model less from now on, over all workers: it refused a call, or says that little of its limit is left.
--
-- KEYS: pace, minute (see limit.lua)
-- ARGV: when the call started in µs (0: nobody knows), µs in which no call may start (-1: this one was not refused),
--       what is left of the model's limit as a share, its calls a minute (0: unknown), µs until it is whole again,
--       µs of a minute, now in µs (0: by the server's clock)
-- It writes calls a minute (rate), at which rate the model refused (ceiling), when it did (cut), until when nobody may
-- start (after) or try more than the ceiling (hold). Returns 1 where the provider sets the pace.
local now = tonumber(ARGV[7])
if now == 0 then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end
local start, wait, minute = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[6])
local pace = redis.call('HMGET', KEYS[1], 'rate', 'ceiling', 'after', 'cut')
local rate, cut = tonumber(pace[1] or 0), tonumber(pace[4] or 0)
local calls = math.max(1, redis.call('ZCOUNT', KEYS[2], now - minute, '+inf'))

local function set(new, ceiling, hold)
  new = math.max(6, new)
  redis.call('HSET', KEYS[1], 'rate', new, 'ceiling', math.max(6, ceiling), 'cut', string.format('%.0f', now),
    'hold', string.format('%.0f', hold), 'calls', string.format('%.0f', now + minute / new))
  redis.call('PEXPIRE', KEYS[1], math.ceil((10 * minute + math.max(0, wait)) / 1000))
end

if wait < 0 then
  local limit = tonumber(ARGV[4]) > 0 and tonumber(ARGV[4]) or calls
  local new = tonumber(ARGV[3]) * limit * minute / math.max(1, math.min(tonumber(ARGV[5]), minute))
  if rate > 0 and new >= rate then return 1 end
  if new < limit then set(new, limit, now) end
  return new < limit and 1 or 0
end
local first = redis.call('ZRANGEBYSCORE', KEYS[2], now - minute, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
local span = math.max(50000, now - tonumber(first[2] or now)) + wait
local whole, again = span > 0.9 * minute, now - cut < 10000000 + wait
-- What was under way when the model refused another call says nothing of the pace that was set then.
local old = rate > 0 and start <= cut
-- Refused at a pace that was right for a minute, and refused once more: for a moment there is no room at all.
local pause = not old and whole and again and math.max(wait, 5000000) or wait
redis.call('HSET', KEYS[1], 'after', string.format('%.0f', math.max(now + pause, tonumber(pace[3] or 0))))
if old then return 1 end
local asked = math.max(1, calls - 1) * minute / (whole and minute or span)
if rate > 0 then asked = math.min(asked, rate) end
-- Where a refusal costs long waits, there is the next one to risk only much later.
local hold = rate > 0 and math.max(20000000, 10 * wait) or minute
set(asked * (again and not whole and 0.5 or 0.9), asked, now + hold)
return 1
