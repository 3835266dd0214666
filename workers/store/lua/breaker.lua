-- Count a failure that no other attempt of the model can escape; open the breaker when there are enough.
--
-- KEYS: breaker    ARGV: model, message, most failures before any success, most after one, expiry seconds
-- Returns the message that the breaker opened with, or an empty string.
local opened = redis.call('HGET', KEYS[1], 'open ' .. ARGV[1])
if opened then return opened end
local failures = redis.call('HINCRBY', KEYS[1], 'failures ' .. ARGV[1], 1)
local answered = redis.call('HEXISTS', KEYS[1], 'answered ' .. ARGV[1])
redis.call('EXPIRE', KEYS[1], ARGV[5])
if failures < tonumber(answered == 1 and ARGV[4] or ARGV[3]) then return '' end
redis.call('HSET', KEYS[1], 'open ' .. ARGV[1], ARGV[2])
return ARGV[2]
