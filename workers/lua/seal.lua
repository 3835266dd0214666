-- Take no more records, unless somebody has resumed the run since.
--
-- KEYS: state    ARGV: generation, now (seconds)
-- Returns 1 when the run is sealed; the time of the first sealing stays.
if redis.call('HGET', KEYS[1], 'generation') ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'sealed', 1)
local at = redis.call('HGET', KEYS[1], 'sealed_at')
if not at or at == '' then redis.call('HSET', KEYS[1], 'sealed_at', ARGV[2]) end
return 1
