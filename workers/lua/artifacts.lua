-- Keep a sealed run's artifacts, once, unless somebody has resumed the run since.
--
-- KEYS: state, artifacts    ARGV: generation, data, expiry seconds
-- Returns 1 for the one caller whose artifacts count.
local state = redis.call('HMGET', KEYS[1], 'generation', 'sealed')
if state[1] ~= ARGV[1] or state[2] ~= '1' then return 0 end
return redis.call('SET', KEYS[2], ARGV[2], 'NX', 'EX', ARGV[3]) and 1 or 0
