-- Let one call start, if it may start now, within what all workers together may ask of a model.
--
-- KEYS: slots (leases by token), pace (calls, tokens: when the next may start; sum: tokens of the last minute;
--       ratio: how much more than estimated calls use), minute (zset: "token tokens" -> start of a call)
-- ARGV: token, lease ms, most in flight (0: any), rpm (0: any), tpm (0: any), estimated tokens, µs of a minute,
--       now in µs (0: by the server's clock)
-- Returns {µs to wait before asking again, tokens that were set aside}; the wait is -1 when no slot is free, and 0
-- when the call is to start at once. Nothing is promised ahead: what was really used decides who may start next.
local now = tonumber(ARGV[8])
if now == 0 then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end
local lease, most, rpm, tpm = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local wanted, minute = tonumber(ARGV[6]), tonumber(ARGV[7])

if most > 0 then
  redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
  if redis.call('ZCARD', KEYS[1]) >= most then return {-1, 0} end
end

if rpm > 0 or tpm > 0 then
  local gone = redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', now - minute)
  for _, call in ipairs(gone) do redis.call('HINCRBY', KEYS[2], 'sum', -tonumber(call:match(' (%d+)$'))) end
  redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', now - minute)
  local calls = redis.call('ZCARD', KEYS[3])
  if calls == 0 then redis.call('HDEL', KEYS[2], 'sum') end
  local pace = redis.call('HMGET', KEYS[2], 'calls', 'tokens', 'sum', 'ratio')
  local used = tonumber(pace[3] or 0)
  -- A call that is larger than a whole minute's share can only start alone.
  wanted = math.min(math.ceil(wanted * math.max(1, tonumber(pace[4] or 1))), math.floor(tpm))
  local start = now
  if rpm > 0 then start = math.max(start, tonumber(pace[1] or 0)) end
  if tpm > 0 then start = math.max(start, tonumber(pace[2] or 0)) end
  if calls > 0 and ((rpm > 0 and calls >= rpm) or (tpm > 0 and used + wanted > tpm)) then
    start = math.max(start, tonumber(redis.call('ZRANGE', KEYS[3], 0, 0, 'WITHSCORES')[2]) + minute)
  end
  if start > now then return {math.ceil(start - now), 0} end
  if rpm > 0 then redis.call('HSET', KEYS[2], 'calls', string.format('%.0f', now + minute / rpm)) end
  if tpm > 0 then
    redis.call('HSET', KEYS[2], 'tokens', string.format('%.0f', now + wanted * minute / tpm))
    redis.call('HINCRBY', KEYS[2], 'sum', wanted)
  end
  redis.call('ZADD', KEYS[3], string.format('%.0f', now), ARGV[1] .. ' ' .. wanted)
  local keep = math.ceil((minute + math.max(rpm > 0 and minute / rpm or 0, minute)) / 1000)
  redis.call('PEXPIRE', KEYS[2], keep)
  redis.call('PEXPIRE', KEYS[3], keep)
end

if most > 0 then
  redis.call('ZADD', KEYS[1], string.format('%.0f', now + lease * 1000), ARGV[1])
  redis.call('PEXPIRE', KEYS[1], lease * 2)
end
return {0, wanted}
