-- Keep an attempt's steps beside its record, while all of the run's together have room; returns whether they are kept.
--
-- KEYS: state, steps (hash: digest -> what is kept, and "bytes" and "left_out")
-- ARGV: most bytes, digest, steps, seconds to live, digest of the skill's text or empty, the text
local STATE, STEPS = KEYS[1], KEYS[2]
local most, digest, kept, seconds, skill, text = unpack(ARGV)
if redis.call('EXISTS', STATE) == 0 then return 0 end
if redis.call('HEXISTS', STEPS, digest) == 1 then return 1 end
local bytes = tonumber(redis.call('HGET', STEPS, 'bytes') or '0')
local more = #kept
if skill ~= '' and redis.call('HEXISTS', STEPS, skill) == 0 then more = more + #text end
local fits = bytes + more <= tonumber(most)
if fits then
  redis.call('HSET', STEPS, digest, kept)
  if skill ~= '' then redis.call('HSET', STEPS, skill, text) end
  redis.call('HINCRBY', STEPS, 'bytes', more)
else
  redis.call('HINCRBY', STEPS, 'left_out', 1)
end
redis.call('EXPIRE', STEPS, seconds)
return fits and 1 or 0
