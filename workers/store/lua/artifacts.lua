-- Keep a sealed run's artifacts, once, unless somebody has resumed the run since, and drop claims that are void.
--
-- KEYS: state, artifacts, records, errors, claims, owners    ARGV: generation, data, expiry seconds
-- Returns 1 for the one caller whose artifacts count.
local state = redis.call('HMGET', KEYS[1], 'generation', 'sealed', 'halt')
if state[1] ~= ARGV[1] or state[2] ~= '1' then return 0 end
if not redis.call('SET', KEYS[2], ARGV[2], 'NX', 'EX', ARGV[3]) then return 0 end
redis.call('HSET', KEYS[1], 'trouble', '')

-- Where another delivery has stored the record, a holder that died meanwhile left a claim that nobody asks for again.
-- A run that was halted keeps those of errors: its resume tries them again, and must not do so twice at a time.
for _, index in ipairs(redis.call('ZRANGE', KEYS[5], 0, -1)) do
  local recorded = redis.call('HEXISTS', KEYS[3], index) == 1
  if recorded and (state[3] == '' or redis.call('HEXISTS', KEYS[4], index) == 0) then
    local reserve = tonumber((redis.call('HGET', KEYS[6], index) or ''):match('^%d+ (%S+)') or 0)
    redis.call('ZREM', KEYS[5], index)
    redis.call('HDEL', KEYS[6], index)
    if reserve > 0 then redis.call('HINCRBYFLOAT', KEYS[1], 'reserved', -reserve) end
  end
end
return 1
