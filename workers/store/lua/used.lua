-- Replace what was set aside for a call by what it used, so that the next ones start sooner or later.
--
-- KEYS: pace, minute (see limit.lua)
-- ARGV: token, tokens set aside, tokens used (-1: the call was not made), estimated tokens, tpm (0: any), rpm (0: any),
--       µs of a minute
local aside, used, estimated = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local tpm, rpm, minute = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local booked = ARGV[1] .. ' ' .. aside
local start = redis.call('ZSCORE', KEYS[2], booked)
if start then -- it began less than a minute ago
  redis.call('ZREM', KEYS[2], booked)
  if used >= 0 then redis.call('ZADD', KEYS[2], start, ARGV[1] .. ' ' .. used) end
  if tpm > 0 then redis.call('HINCRBY', KEYS[1], 'sum', math.max(0, used) - aside) end
end
if redis.call('EXISTS', KEYS[1]) == 0 then return end
if tpm > 0 then
  local change = math.floor((math.max(0, used) - aside) * minute / tpm + 0.5) -- whole: Redis refuses "-0"
  if change ~= 0 then redis.call('HINCRBY', KEYS[1], 'tokens ' .. ARGV[5], string.format('%.0f', change)) end
end
if used < 0 then
  local rate = tonumber(redis.call('HGET', KEYS[1], 'rate') or 0)
  if rpm > 0 then redis.call('HINCRBY', KEYS[1], 'calls ' .. ARGV[6], string.format('%.0f', -minute / rpm)) end
  if rate > 0 then redis.call('HINCRBY', KEYS[1], 'calls', string.format('%.0f', -minute / rate)) end
elseif used > 0 and estimated > 0 then
  -- Quick to rise and slow to fall: calls that are under way were started by it.
  local old, new = tonumber(redis.call('HGET', KEYS[1], 'ratio') or 1), used / estimated
  redis.call('HSET', KEYS[1], 'ratio', string.format('%.4f', math.max(new, 0.9 * old + 0.1 * new)))
end
