-- Refresh or drop claims that are still held with the given tokens.
--
-- KEYS: those of ledger.lua    ARGV: lease ms (0: drop; -1: drop what no model was asked for), then index, token pairs
-- Returns how many were still ours.
redis.call('ZREM', CLAIMS, '') -- a full server lets a script go on whose first write needs no room
local now, lease, ours = milliseconds(), tonumber(ARGV[1]), 0
for i = 2, #ARGV, 2 do
  local index, token = ARGV[i], ARGV[i + 1]
  local held, reserve = holder(index)
  if held == token then
    ours = ours + 1
    if lease > 0 then
      redis.call('ZADD', CLAIMS, now + lease, index)
    else
      release(index, reserve)
      if lease == 0 then assume(token, reserve) end -- the call was cut off, and is billed
    end
  end
end
return ours
