-- Put a message that a dead worker took back where it waited; whoever comes second finds nothing to put back.
--
-- KEYS: unacked (hash: tag -> message), unacked_index, list to wait in    ARGV: tag, message
-- Returns 1 when this call has put it back.
if redis.call('HDEL', KEYS[1], ARGV[1]) == 0 then return 0 end
redis.call('ZREM', KEYS[2], ARGV[1])
redis.call('RPUSH', KEYS[3], ARGV[2])
return 1
