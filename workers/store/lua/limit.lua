-- Let one call start, if it may start now, within what all workers together may ask of a model, and note its start.
--
-- KEYS: slots (leases by token), pace (calls RPM, tokens TPM: when the next call with this limit may start; rpm, tpm:
--       the largest that were asked for; sum: tokens of the last minute; ratio: how much of the estimates calls use;
--       first: "token tokens µs µs tokens" of whoever waits for room: what it wants, when it asked last, since when it
--       waits, and what others were given since;
--       what slow.lua writes while the provider sets the pace, and calls: when the next may start by that),
--       minute (zset: "token tokens" -> start of a call)
-- ARGV: token, lease ms, most in flight (0: any), rpm (0: any), tpm (0: any), estimated tokens, µs of a minute,
--       now in µs (0: by the server's clock), since when it waits in µs (0: it asks for the first time)
-- Returns {µs to wait before asking again, tokens that were set aside, calls a minute that the provider lets us make
-- (0: any), now}; the wait is -1 when no slot is free, and 0 when the call is to start at once. Nothing is promised
-- ahead: what was really used decides who may start next.
local now = tonumber(ARGV[8])
if now == 0 then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end
local lease, most, rpm, tpm = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local wanted, minute = tonumber(ARGV[6]), tonumber(ARGV[7])
-- Runs may tell different limits: each is paced by its own, and all together have what the largest allows.
local my_calls, my_tokens = 'calls ' .. ARGV[4], 'tokens ' .. ARGV[5]
local pace = redis.call('HMGET', KEYS[2], my_calls, my_tokens, 'sum', 'ratio', 'rate', 'ceiling', 'after', 'hold',
  'calls', 'rpm', 'tpm', 'first')
local rate, ceiling = tonumber(pace[5] or 0), tonumber(pace[6] or 0)
if rate > 20 * ceiling then
  rate = 0 -- it has not refused anything for long
  redis.call('HDEL', KEYS[2], 'rate')
end
local paced, at_once = math.ceil(rate), math.floor(math.max(rate, ceiling))
local most_calls = rpm > 0 and math.max(rpm, tonumber(pace[10] or 0)) or math.huge
local most_tokens = math.max(tpm, tonumber(pace[11] or 0))
local full = rate > 0 and math.min(most_calls, at_once) or most_calls

if most > 0 then
  redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
  if redis.call('ZCARD', KEYS[1]) >= most then return {-1, 0, paced, now} end
end

local gone = redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', now - minute)
local used = tonumber(pace[3] or 0)
for _, call in ipairs(gone) do used = used - tonumber(call:match(' (%d+)$')) end
if #gone > 0 then redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', now - minute) end
local calls = redis.call('ZCARD', KEYS[3])
if calls == 0 then used = 0 end
-- A call that is larger than a whole minute's share can only start alone.
wanted = math.min(math.ceil(wanted * tonumber(pace[4] or 1)), math.floor(tpm))
local start = now
if rpm > 0 then start = math.max(start, tonumber(pace[1] or 0)) end
if tpm > 0 then start = math.max(start, tonumber(pace[2] or 0)) end
if rate > 0 then start = math.max(start, tonumber(pace[7] or 0), tonumber(pace[9] or 0)) end
local too_large = tpm > 0 and calls > 0 and used + wanted > most_tokens
if calls > 0 and (calls >= full or too_large) then
  start = math.max(start, tonumber(redis.call('ZRANGE', KEYS[3], 0, 0, 'WITHSCORES')[2]) + minute)
end
-- Small calls would fill every gap before it is large enough for a large one. So whoever has waited longest for room
-- gets what a minute frees: others pass only as far as they leave room for it, and while it goes on asking.
local first, its_tokens, asked, its_since, passed = (pace[12] or ''):match('^(%S+) (%d+) (%d+) (%d+) (%d+)$')
local since = ARGV[9] == '0' and now or tonumber(ARGV[9])
if now - tonumber(asked or 0) > minute / 12 then first = nil end
local function note_first(token, tokens, seen, from, others)
  redis.call('HSET', KEYS[2], 'first', string.format('%s %d %.0f %.0f %d', token, tokens, seen, from, others))
end
local mine, behind = first == ARGV[1], first and since >= tonumber(its_since)
if too_large and (mine or not behind) then
  note_first(ARGV[1], wanted, now, since, mine and passed or 0)
elseif behind and not mine and tpm > 0 and its_tokens + passed + wanted > most_tokens then
  start = math.max(start, now + minute / 60)
end
if #gone > 0 or tpm > 0 then redis.call('HSET', KEYS[2], 'sum', used + (start > now and 0 or wanted)) end
if start > now then return {math.ceil(start - now), 0, paced, now} end
if mine then
  redis.call('HDEL', KEYS[2], 'first')
elseif first then
  note_first(first, its_tokens, asked, its_since, passed + wanted)
end
local function next_start(name, wait, ...)
  redis.call('HSET', KEYS[2], name, string.format('%.0f', now + wait), ...)
end
if rpm > 0 then next_start(my_calls, minute / rpm, 'rpm', most_calls) end
if tpm > 0 then next_start(my_tokens, wanted * minute / tpm, 'tpm', most_tokens) end
if rate > 0 then
  next_start('calls', minute / math.min(at_once, rate))
  -- By the minute: back to just below what was refused at once, beyond that slowly at first, and not so soon again.
  local goal, more = 0.9 * ceiling, 0
  if rate < goal then
    more = 0.15 * ceiling + 3 * (goal - rate)
  elseif now >= tonumber(pace[8]) then
    more = 0.15 * ceiling + math.max(0, rate - ceiling)
  end
  redis.call('HSET', KEYS[2], 'rate', rate + more / rate)
end
redis.call('ZADD', KEYS[3], string.format('%.0f', now), ARGV[1] .. ' ' .. wanted)
local keep = math.ceil((minute + math.max(rpm > 0 and minute / rpm or 0, minute)) / 1000)
-- A smaller limit's next start may be later than ours.
redis.call('PEXPIRE', KEYS[2], math.max(rate > 0 and 5 * keep or keep, 1000 * redis.call('TTL', KEYS[2])))
redis.call('PEXPIRE', KEYS[3], keep)

if most > 0 then
  redis.call('ZADD', KEYS[1], string.format('%.0f', now + lease * 1000), ARGV[1])
  redis.call('PEXPIRE', KEYS[1], lease * 2)
end
return {0, wanted, paced, now}
