-- Take no more records, unless somebody has resumed the run since.
--
-- KEYS: those of ledger.lua    ARGV: generation, now (seconds)
-- Returns 1 when the run is sealed; the time of the first sealing stays.
if redis.call('HGET', STATE, 'generation') ~= ARGV[1] then return 0 end
redis.call('HSET', STATE, 'sealed', 1)
local at = redis.call('HGET', STATE, 'sealed_at')
if not at or at == '' then redis.call('HSET', STATE, 'sealed_at', ARGV[2]) end
for _, index in ipairs(redis.call('ZRANGEBYSCORE', CLAIMS, '-inf', milliseconds())) do assume_held(index) end
return 1
