-- Let one worker be the one that mends, for as long as it asks again in time.
--
-- KEYS: mender    ARGV: name, lease ms
-- Returns 1 for the one that is elected.
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
