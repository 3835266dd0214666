-- Write fields into a run's state, unless the run is gone, was resumed since, or is past the point where they matter.
--
-- KEYS: state
-- ARGV: generation (empty: any), until (over: always, sealed: until it is sealed, halted: until it is halted or sealed),
--       then field, value pairs
-- Returns 1 when they are written.
local state = redis.call('HMGET', KEYS[1], 'generation', 'sealed', 'halt')
if not state[1] or (ARGV[1] ~= '' and state[1] ~= ARGV[1]) then return 0 end
if ARGV[2] ~= 'over' and state[2] == '1' then return 0 end
if ARGV[2] == 'halted' and (state[3] or '') ~= '' then return 0 end
redis.call('HSET', KEYS[1], unpack(ARGV, 3))
return 1
