-- Refresh or drop claims that are still held with the given tokens.
--
-- KEYS: state, claims, owners    ARGV: lease ms (0: drop), then index, token pairs
-- Returns how many were still ours.
local now = redis.call('TIME')
now = now[1] * 1000 + math.floor(now[2] / 1000)
local lease, ours = tonumber(ARGV[1]), 0
for i = 2, #ARGV, 2 do
  local owner = redis.call('HGET', KEYS[3], ARGV[i])
  local token, reserve = (owner or ''):match('^(%d+) (%S+)')
  if token == ARGV[i + 1] then
    ours = ours + 1
    if lease > 0 then
      redis.call('ZADD', KEYS[2], now + lease, ARGV[i])
    else
      redis.call('ZREM', KEYS[2], ARGV[i])
      redis.call('HDEL', KEYS[3], ARGV[i])
      if tonumber(reserve) > 0 then
        redis.call('HINCRBYFLOAT', KEYS[1], 'reserved', -tonumber(reserve))
        redis.call('HINCRBYFLOAT', KEYS[1], 'assumed', reserve) -- its call was cut off, and is billed
      end
    end
  end
end
return ours
