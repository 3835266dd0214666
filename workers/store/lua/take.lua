-- Note that a message is taken, and take more of what waits: at most this worker's share, the higher priorities of all
-- lanes first, and of equal ones the lanes in turn.
--
-- KEYS: unacked (hash: tag -> "[message, exchange, lane]"), unacked_index, workers, then the lists in which messages
--       wait: those of all lanes for the highest priority, then for the next
-- ARGV: now (seconds), how many there is room for, seconds after which a worker is not alive, the message at hand, its
--       lane, then the lanes in the order of their lists
-- Returns each message, its lane and its tag; both are empty of one that cannot be read, which is not noted.
redis.call('HDEL', KEYS[1], '') -- a full server lets a script go on whose first write needs no room: nothing gets lost
local lanes = math.max(1, #ARGV - 5) -- none where a worker leaves; a step of 0 would never end
local answers, lengths, waiting = {}, {}, 0

local function take(message, lane)
  local read, fields = pcall(cjson.decode, message)
  local tag = read and type(fields) == 'table' and type(fields.properties) == 'table' and fields.properties.delivery_tag
  local noted = type(tag) == 'string'
  local parts = #answers
  answers[parts + 1], answers[parts + 2], answers[parts + 3] = message, noted and lane or '', noted and tag or ''
  if not noted then return end
  redis.call('HSET', KEYS[1], tag, '[' .. message .. ', "", ' .. cjson.encode(lane) .. ']')
  redis.call('ZADD', KEYS[2], ARGV[1], tag)
end

take(ARGV[4], ARGV[5])
for i = 4, #KEYS do
  lengths[i] = redis.call('LLEN', KEYS[i])
  waiting = waiting + lengths[i]
end
local alive = redis.call('ZCOUNT', KEYS[3], redis.call('TIME')[1] - ARGV[3], '+inf')
local more = math.min(ARGV[2] - 1, math.ceil(waiting / math.max(1, alive)))
for first = 4, #KEYS, lanes do
  local left = true
  while left do
    left = false
    for i = first, first + lanes - 1 do
      if more > 0 and lengths[i] > 0 then
        take(redis.call('RPOP', KEYS[i]), ARGV[6 + i - first])
        lengths[i], more, left = lengths[i] - 1, more - 1, true
      end
    end
  end
end
return answers
