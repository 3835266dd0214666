-- Keep a sealed run's artifacts, once, unless somebody has resumed the run since, and drop claims that are void.
--
-- KEYS: those of ledger.lua, then artifacts, records, errors    ARGV: generation, data, expiry seconds
-- Returns 1 for the one caller whose artifacts count.
local ARTIFACTS, RECORDS, ERRORS = unpack(KEYS, 6, 8)
local state = redis.call('HMGET', STATE, 'generation', 'sealed', 'halt')
if state[1] ~= ARGV[1] or state[2] ~= '1' then return 0 end
if not redis.call('SET', ARTIFACTS, ARGV[2], 'NX', 'EX', ARGV[3]) then return 0 end
redis.call('HSET', STATE, 'trouble', '')

-- Where another delivery has stored the record, a holder that died meanwhile left a claim that nobody asks for again.
-- A run that was halted keeps those of errors: its resume tries them again, and must not do so twice at a time.
for _, index in ipairs(redis.call('ZRANGE', CLAIMS, 0, -1)) do
  local recorded = redis.call('HEXISTS', RECORDS, index) == 1
  if recorded and (state[3] == '' or redis.call('HEXISTS', ERRORS, index) == 0) then release(index, select(2, holder(index))) end
end
return 1
