-- Take a run that is gone out of the list of runs, unless somebody has created it again since.
--
-- KEYS: list of runs, state    ARGV: run
if redis.call('HEXISTS', KEYS[2], 'generation') == 0 then redis.call('ZREM', KEYS[1], ARGV[1]) end
