-- What all workers together may ask of a model provider: places for responses at once, and two buckets that fill with time.
-- a.op: enter | leave | pause | beat.  a.provider, a.permit.  enter: a.process, a.tokens, and the limits that there are.
-- held  permits in use, scored by the end of their lease: a worker that died gives its places back by saying nothing
-- line  permits that wait, in the order of their arrival     seen  until when each of them is believed to be there
-- who   the process that waits for a permit                  state the buckets, the clock of their last filling, a pause
local B = key('budget', a.provider)
local HELD, LINE, SEEN, WHO, STATE = B .. ':held', B .. ':line', B .. ':seen', B .. ':who', B .. ':state'
local LEASE_MS, PATIENCE_MS, ASK_MS, KEEP_MS = 60000, 15000, 5000, 3600000
local BURST = 1 / 6  -- of a minute: what may go out at once after a quiet time

local function leave_line(permit)
  call('ZREM', LINE, permit)
  call('ZREM', SEEN, permit)
  call('HDEL', WHO, permit)
end

local function tidy()
  call('ZREMRANGEBYSCORE', HELD, '-inf', int(NOW))
  for _, permit in ipairs(call('ZRANGEBYSCORE', SEEN, '-inf', int(NOW))) do leave_line(permit) end
end

local function touch()
  for _, name in ipairs({ HELD, LINE, SEEN, WHO, STATE }) do call('PEXPIRE', name, KEEP_MS) end
end

-- Whoever is first in line now asks for itself: it knows its limits and its timer.
local function ring_first()
  local first = call('ZRANGE', LINE, 0, 0)[1]
  if not first then return end
  local process = call('HGET', WHO, first)
  if not process then return end
  local stream = P .. 'budget:wake:' .. process
  call('XADD', stream, 'MAXLEN', '~', 1000, '*', 'p', first)
  call('PEXPIRE', stream, KEEP_MS)
end

-- A bucket now: what is in it, and how much it may hold.
local function bucket(name, per_minute)
  local full = math.max(1, per_minute * BURST)
  local h = call('HMGET', STATE, name, name .. ':at')
  if not h[1] then return full, full end
  return math.min(full, tonumber(h[1]) + (NOW - tonumber(h[2])) * per_minute / 60000), full
end

local function fill(name, level) call('HSET', STATE, name, string.format('%.3f', level), name .. ':at', int(NOW)) end

-- Milliseconds until a bucket holds enough. More than it can hold is let through when it is full, and leaves a debt.
local function time_until(level, full, wanted, per_minute)
  local missing = math.min(wanted, full) - level
  return missing <= 0 and 0 or math.ceil(missing * 60000 / per_minute)
end

if a.op == 'enter' then
  tidy()
  if not call('ZSCORE', LINE, a.permit) then
    call('ZADD', LINE, call('HINCRBY', STATE, 'arrivals', 1), a.permit)
    call('HSET', WHO, a.permit, a.process)
  end
  call('ZADD', SEEN, int(NOW + PATIENCE_MS), a.permit)
  touch()
  local place = call('ZRANK', LINE, a.permit)
  if place > 0 then return { 'wait', ASK_MS, place } end
  local wait = math.max(0, (tonumber(call('HGET', STATE, 'paused') or 0)) - NOW)
  local requests, tokens, full
  if a.rpm then
    requests, full = bucket('requests', a.rpm)
    wait = math.max(wait, time_until(requests, full, 1, a.rpm))
  end
  if a.tpm then
    tokens, full = bucket('tokens', a.tpm)
    wait = math.max(wait, time_until(tokens, full, a.tokens, a.tpm))
  end
  if a.places and call('ZCARD', HELD) >= a.places then wait = math.max(wait, ASK_MS) end
  if wait > 0 then return { 'wait', math.min(wait, ASK_MS), 0 } end
  leave_line(a.permit)
  call('ZADD', HELD, int(NOW + LEASE_MS), a.permit)
  if requests then fill('requests', requests - 1) end
  if tokens then fill('tokens', tokens - a.tokens) end
  touch()
  ring_first()
  return { 'granted' }
end

if a.op == 'leave' then
  tidy()
  call('ZREM', HELD, a.permit)
  leave_line(a.permit)
  local level = call('HGET', STATE, 'tokens')
  if level and a.more ~= 0 then call('HSET', STATE, 'tokens', string.format('%.3f', tonumber(level) - a.more)) end
  ring_first()
  return { 'ok' }
end

if a.op == 'pause' then
  local paused = tonumber(call('HGET', STATE, 'paused') or 0)
  call('HSET', STATE, 'paused', int(math.max(paused, NOW + a.ms)))
  touch()
  return { 'ok' }
end

for _, permit in ipairs(a.permits) do call('ZADD', HELD, 'XX', int(NOW + LEASE_MS), permit) end
touch()
return { 'ok' }
