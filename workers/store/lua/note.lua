-- Write fields into a run's state, unless the run is gone, was resumed since, or is past the point where they matter.
--
-- KEYS: state, artifacts
-- ARGV: generation (empty: any), until (over: always, ended: until there are artifacts, sealed: until it is sealed,
--       halted: until it is halted or sealed), then field, value pairs
-- Returns 1 when they are written.
local state = redis.call('HMGET', KEYS[1], 'generation', 'sealed', 'halt')
if not state[1] or (ARGV[1] ~= '' and state[1] ~= ARGV[1]) then return 0 end
if ARGV[2] == 'ended' and redis.call('EXISTS', KEYS[2]) == 1 then return 0 end
if ARGV[2] ~= 'over' and ARGV[2] ~= 'ended' and state[2] == '1' then return 0 end
if ARGV[2] == 'halted' and (state[3] or '') ~= '' then return 0 end
redis.call('HDEL', KEYS[1], '') -- a full server lets a script go on whose first write needs no room: cancelling must do
redis.call('HSET', KEYS[1], unpack(ARGV, 3))
return 1
