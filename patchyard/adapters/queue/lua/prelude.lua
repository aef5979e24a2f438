-- Shared by all scripts. KEYS[1]: key prefix of the shard. ARGV[1]: named arguments as JSON. ARGV[2..]: payloads, byte for byte.
-- Answers are lists whose first element is a status word.
local P, a = KEYS[1], cjson.decode(ARGV[1])
local call = redis.call

local FIRE_LENGTH = 10000      -- entries of the firehose: some seconds at full load; who is slower resumes from `eq`
local FIRE_BODY = 8192         -- bytes; bigger records go by number only, so that the firehose stays below ~80 MB
local CTL_LENGTH = 1000
local LIVE_TTL_MS = 600000     -- texts of open items outlive a worker by ten minutes at most
local AGING_MS = 600000        -- one step of priority is worth ten minutes of waiting: nothing starves

local function key(kind, id) return P .. kind .. ':' .. id end
local function int(n) return string.format('%.0f', n) end
local function quote(s) if s == nil or s == false or s == '' then return 'null' end return cjson.encode(s) end
local function now() local t = call('TIME'); return t[1] * 1000 + math.floor(t[2] / 1000) end
local NOW = now()

local function st(thread, ...) return call('HMGET', key('st', thread), ...) end
local function put(thread, ...) call('HSET', key('st', thread), ...) end
local function has_lease(thread) return call('ZSCORE', P .. 'leases', thread) ~= false end
local function held(thread, fence) return st(thread, 'fence')[1] == fence and has_lease(thread) end

local function caps_of(thread)
  local h = st(thread, 'tenant', 'repo')
  local repo = h[2] and h[2] ~= '' and key('caps:repository', h[1] .. '/' .. h[2]) or nil
  return key('caps:tenant', h[1]), repo
end

local function renew(thread, ttl)
  local tenant, repo = caps_of(thread)
  call('ZADD', P .. 'leases', int(NOW + ttl), thread)
  call('ZADD', tenant, int(NOW + ttl), thread)
  if repo then call('ZADD', repo, int(NOW + ttl), thread) end
end

local function drop_lease(thread)
  local tenant, repo = caps_of(thread)
  call('ZREM', P .. 'leases', thread)
  call('ZREM', tenant, thread)
  if repo then call('ZREM', repo, thread) end
  put(thread, 'worker', '')
end

-- Start-time fair queueing: a tenant that comes back starts at the common clock, but not before the end of its own last service.
local function make_ready(thread, why)
  local h = st(thread, 'tenant', 'prio')
  local tenant = h[1]
  put(thread, 'status', 'queued')
  if why then put(thread, 'why', why) end
  call('ZREM', P .. 'parked', thread)
  call('ZADD', key('ready', tenant), 'NX', int(NOW + (tonumber(h[2]) or 5) * AGING_MS), thread)
  if not call('ZSCORE', P .. 'tenants', tenant) then
    local v = call('HMGET', P .. 'vt', tenant, '*')
    call('ZADD', P .. 'tenants', int(math.max(tonumber(v[1]) or 0, tonumber(v[2]) or 0)), tenant)
  end
end

local function make_idle(thread)
  put(thread, 'status', 'idle')
  call('ZREM', P .. 'parked', thread)
  call('ZREM', key('ready', st(thread, 'tenant')[1]), thread)
end

local function ring_holder(thread)
  local worker = st(thread, 'worker')[1]
  if worker and worker ~= '' then
    call('XADD', key('ctl', worker), 'MAXLEN', '~', CTL_LENGTH, '*', 't', thread)
    call('EXPIRE', key('ctl', worker), 86400)
  end
end

local function drop_live(thread)
  local live = key('live', thread)
  for _, item in ipairs(call('HKEYS', live)) do call('DEL', live .. ':' .. item) end
  call('DEL', live)
end

-- Appends one record: the line that recovery reads, and for events the entry that watchers get.
local function append(thread, tenant, ordinal, line, is_event)
  call('XADD', key('eq', thread), int(ordinal + 1) .. '-0', 'l', line)
  if is_event then
    if #line <= FIRE_BODY then
      call('XADD', P .. 'fire', 'MAXLEN', '~', FIRE_LENGTH, '*', 't', thread, 'n', tenant, 'o', int(ordinal), 'l', line)
    else
      call('XADD', P .. 'fire', 'MAXLEN', '~', FIRE_LENGTH, '*', 't', thread, 'n', tenant, 'o', int(ordinal))
    end
  end
end

local function mark_dirty(thread) call('ZADD', P .. 'dirty', 'NX', int(NOW), thread) end

-- An event that the queue itself decides. Only without a lease: a holder numbers its records itself.
local function decide(thread, tenant, payload, submission, turn)
  local ordinal = call('HINCRBY', key('st', thread), 'next', 1) - 1
  local line = '{"timestamp":' .. int(NOW) .. ',"ordinal":' .. int(ordinal) .. ',"submission_id":' .. quote(submission)
    .. ',"turn_id":' .. quote(turn) .. ',"type":"event_msg","payload":' .. payload .. '}'
  append(thread, tenant, ordinal, line, true)
  mark_dirty(thread)
end

-- Fields of `st` that sum up: `u:` of the active turn, `f:` of the agents that it has started, `t:` of an agent's whole thread.
local TOTALS = { 'input_tokens', 'cached_input_tokens', 'cache_write_input_tokens', 'output_tokens', 'reasoning_output_tokens', 'total_tokens' }

local function clear_turn(thread)
  put(thread, 'turn', '', 'kind', '', 'schema', '', 'segment', 0, 'crashes', 0)
  local s = key('st', thread)
  for _, kind in ipairs({ 'u:', 'f:' }) do
    for _, name in ipairs(TOTALS) do call('HDEL', s, kind .. name) end
    call('HDEL', s, kind .. 'cost', kind .. 'requests', kind .. 'calls')
  end
end

local function begin_turn(thread, turn, kind, schema, submitted_at)
  clear_turn(thread)
  -- Under a lease the turn's first segment begins without a claim.
  put(thread, 'turn', turn, 'kind', kind, 'schema', schema or '', 'turn_at', submitted_at, 'why', 'new',
    'segment', has_lease(thread) and 1 or 0)
end

-- An entry of `sq` as a table: i id, c class, u turn, k kind of the turn that it may start, o op, z control place, s submission.
local function entries(thread, from)
  local found = {}
  for _, e in ipairs(call('XRANGE', key('sq', thread), from or '-', '+')) do
    local f = { sid = e[1] }
    for i = 1, #e[2], 2 do f[e[2][i]] = e[2][i + 1] end
    found[#found + 1] = f
  end
  return found
end

-- Shows something live: `e.k` item and kind of delta, `e.o` offset of the text in the item's whole text, `e.r` restart of the stored text.
local function publish(thread, fence, e, head, text)
  local live = key('live', thread)
  if e.n then
    call('XADD', P .. 'fire', 'MAXLEN', '~', FIRE_LENGTH, '*', 't', thread, 'f', fence, 'k', e.k, 'o', int(e.o), 'h', head)
    call('HSET', live, e.k, fence .. ' 0 ' .. head)
  else
    call('XADD', P .. 'fire', 'MAXLEN', '~', FIRE_LENGTH, '*', 't', thread, 'f', fence, 'k', e.k, 'o', int(e.o), 'h', head, 'x', text)
    local stored = live .. ':' .. e.k
    if e.r or e.o == 0 or call('EXISTS', stored) == 0 then
      call('HSET', live, e.k, fence .. ' ' .. int(e.o) .. ' ' .. head)
      call('SET', stored, text)
    else
      call('APPEND', stored, text)
    end
    call('PEXPIRE', stored, LIVE_TTL_MS)
  end
  call('PEXPIRE', live, LIVE_TTL_MS)
end

-- Fences, and tells a repeated call from a new one. nil: go on and write.
local function guard(verb)
  local h = st(a.thread, 'fence', 'next', 'last')
  local once = verb and (verb .. ':' .. a.fence .. ':' .. int(a.first) .. ':' .. (a.turn or ''))
  if once and h[3] and string.sub(h[3], 1, #once + 1) == once .. '=' then return { string.sub(h[3], #once + 2) } end
  if h[1] ~= a.fence or not has_lease(a.thread) then return { 'FENCED' } end
  local nextOrdinal = tonumber(h[2])
  if nextOrdinal == a.first then return nil end
  if nextOrdinal == a.first + #a.events and not verb then return { 'OK' } end
  return { 'GAP', nextOrdinal }
end

local function remember(verb, answer)
  put(a.thread, 'last', verb .. ':' .. a.fence .. ':' .. int(a.first) .. ':' .. (a.turn or '') .. '=' .. answer)
end

-- Adds to totals of a thread. The cost is a number as text.
local function add(thread, kind, totals, cost)
  local s = key('st', thread)
  for name, amount in pairs(totals) do call('HINCRBY', s, kind .. name, int(amount)) end
  if cost then call('HINCRBYFLOAT', s, kind .. 'cost', cost) end
end

-- What a thread's active turn uses. An agent's use is part of that of the turns above it, as long as they go on.
local function charge(thread, totals, cost)
  add(thread, 'u:', totals, cost)
  while true do
    local h = st(thread, 'parent', 'payer')
    if not h[1] then return end
    add(thread, 't:', totals, cost)
    if st(h[1], 'turn')[1] ~= h[2] then return end
    add(h[1], 'f:', totals, cost)
    thread = h[1]
  end
end

-- Writes what every fenced call may bring along: live texts, records, closed items, consumed submissions, totals of the turn.
-- ARGV after the records: head and text of each live entry.
local function write()
  local tenant, lines = st(a.thread, 'tenant')[1], #a.events
  for i, e in ipairs(a.live or {}) do
    publish(a.thread, a.fence, e, ARGV[1 + lines + 2 * i - 1], ARGV[1 + lines + 2 * i])
  end
  for i, is_event in ipairs(a.events) do append(a.thread, tenant, a.first + i - 1, ARGV[1 + i], is_event == 1) end
  local live = key('live', a.thread)
  for _, item in ipairs(a.closed or {}) do
    call('HDEL', live, item)
    call('DEL', live .. ':' .. item)
  end
  if #(a.consumed or {}) > 0 then call('XDEL', key('sq', a.thread), unpack(a.consumed)) end
  local s = key('st', a.thread)
  if lines > 0 then
    put(a.thread, 'next', int(a.first + lines))
    mark_dirty(a.thread)
  end
  if next(a.totals or {}) or a.cost then charge(a.thread, a.totals or {}, a.cost) end
  if a.container then call('HSET', s, 'container', a.container) end
end
