-- Take no more records, unless somebody has resumed the run since.
--
-- KEYS: state, claims, owners    ARGV: generation, now (seconds)
-- Returns 1 when the run is sealed; the time of the first sealing stays.
if redis.call('HGET', KEYS[1], 'generation') ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'sealed', 1)
local at = redis.call('HGET', KEYS[1], 'sealed_at')
if not at or at == '' then redis.call('HSET', KEYS[1], 'sealed_at', ARGV[2]) end

-- Whoever vanished had asked already, and is billed: what was reserved for it counts as if it were spent.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local assumed = 0
for _, index in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now)) do
  local token, reserve, owner = (redis.call('HGET', KEYS[3], index) or ''):match('^(%d+) (%S+) (.*)$')
  if token then
    redis.call('HSET', KEYS[3], index, token .. ' 0 ' .. owner)
    assumed = assumed + tonumber(reserve)
  end
end
if assumed > 0 then
  redis.call('HINCRBYFLOAT', KEYS[1], 'assumed', assumed)
  redis.call('HINCRBYFLOAT', KEYS[1], 'reserved', -assumed)
end
return 1
