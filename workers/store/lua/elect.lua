-- Let one process have something for a while: for as long as it asks again in time, or until it gives it up.
--
-- KEYS: what is to be had    ARGV: name, lease ms (0: give it up)
-- Returns 1 for the one that has it.
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then return 0 end
if ARGV[2] == '0' then redis.call('DEL', KEYS[1]) else redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2]) end
return 1
