-- Let one call start, now or later, within what all workers together may ask of a model.
--
-- KEYS: slots (leases by token), pace    ARGV: token, lease ms, most in flight (0: any), µs per call, µs for its tokens
-- Returns how many µs to wait before the call, or -1 when no slot is free. A wait is a reservation: the next
-- caller's turn comes after it, so nobody asks twice and turns are taken in order.
local now = redis.call('TIME')
now = now[1] * 1000000 + now[2]
local lease, most = tonumber(ARGV[2]), tonumber(ARGV[3])
local per_call, for_tokens = tonumber(ARGV[4]), tonumber(ARGV[5])

if most > 0 then
  redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
  if redis.call('ZCARD', KEYS[1]) >= most then return -1 end
  redis.call('ZADD', KEYS[1], string.format('%.0f', now + lease * 1000), ARGV[1])
  redis.call('PEXPIRE', KEYS[1], lease * 2)
end

if per_call == 0 and for_tokens == 0 then return 0 end
local pace = redis.call('HMGET', KEYS[2], 'calls', 'tokens')
local calls, tokens = tonumber(pace[1] or 0), tonumber(pace[2] or 0)
local start = math.max(now, per_call > 0 and calls or 0, for_tokens > 0 and tokens or 0)
if per_call > 0 then calls = start + per_call end
if for_tokens > 0 then tokens = start + for_tokens end
redis.call('HSET', KEYS[2], 'calls', string.format('%.0f', calls), 'tokens', string.format('%.0f', tokens))
redis.call('PEXPIRE', KEYS[2], math.ceil((math.max(calls, tokens) - now) / 1000) + 60000)
return start - now
