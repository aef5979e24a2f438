-- Accepts a submission or answers why not. ARGV[2]: the submission.
-- -> KNOWN|OK, submission id, started|steered|applied|not_submitted, turn or reason, active turn
-- -> NOT_FOUND | CLOSED | FULL, waiting
local t, tenant = a.thread, a.tenant
local h = st(t, 'tenant', 'status', 'turn', 'kind', 'schema', 'closing')
local status, turn, kind = h[2] or 'idle', h[3] or '', h[4]
local class = a.class

if h[1] and h[1] ~= tenant then return { 'NOT_FOUND' } end
local known = call('HGET', key('idem', t), a.idem)
if known then
  local first = cjson.decode(known)
  return { 'KNOWN', first[1], first[2], first[3], first[4] }
end
if not h[1] and not a.reg then return { 'NOT_FOUND' } end
if status == 'closed' or h[6] == '1' then return { 'CLOSED' } end

local function admission()
  local active = turn ~= ''
  if class == 'input' then
    if not active then
      if a.mode == 'steer' then return 'not_submitted', 'no_active_turn' end
      if a.empty then return 'not_submitted', 'empty_input' end
      return 'started', a.id
    end
    if a.mode == 'start_if_idle' then return 'not_submitted', 'not_idle' end
    if a.mode == 'steer' and a.expected ~= turn then return 'not_submitted', 'expected_turn_mismatch' end
    if kind ~= 'regular' then return 'not_submitted', 'active_turn_not_steerable' end
    if a.empty then return 'not_submitted', 'empty_input' end
    if a.schema and a.schema ~= h[5] then return 'not_submitted', 'output_schema_mismatch' end
    return 'steered', turn
  elseif class == 'exclusive_turn' then
    if active then return 'not_submitted', 'not_idle' end
    return 'started', a.id
  elseif class == 'turn_or_op' then
    if active then return 'applied', '' end
    return 'started', a.id
  elseif class == 'message' then
    if not active then return 'started', a.id end
    if kind == 'regular' then return 'steered', turn end
    return 'applied', ''
  elseif class == 'for_turn' or class == 'interrupt' then
    if not active then return 'not_submitted', 'no_active_turn' end
    if a.expected and a.expected ~= turn then return 'not_submitted', 'expected_turn_mismatch' end
  end
  return 'applied', ''
end

local answer, value = admission()
if answer == 'not_submitted' then return { 'OK', a.id, answer, value, turn } end

local lease = has_lease(t)
local decided = (class == 'interrupt' or class == 'shutdown') and not lease
local waiting = call('XLEN', key('sq', t))
if waiting >= a.places and not decided then return { 'FULL', waiting } end

local parent = not h[1] and a.reg.parent
if parent then
  -- An agent of a turn that is over would have nobody to end it.
  local p = st(parent, 'tenant', 'turn')
  if p[1] ~= tenant or p[2] ~= a.reg.payer then return { 'CLOSED' } end
end
if not h[1] then
  put(t, 'tenant', tenant, 'task', a.reg.task, 'repo', a.reg.repo, 'spec', a.reg.spec, 'title', a.reg.title, 'prio', a.prio,
    'status', 'idle', 'turn', '', 'kind', '', 'schema', '', 'fence', 0, 'next', 0, 'segment', 0, 'crashes', 0, 'trimmed', -1,
    'worker', '', 'why', 'new', 'created', int(NOW))
end
if parent then
  put(t, 'parent', parent, 'payer', a.reg.payer)
  call('SADD', key('agents', parent), t)
end
call('HSET', key('idem', t), a.idem, cjson.encode({ a.id, answer, value, turn }))
call('EXPIRE', key('idem', t), a.idem_ttl)

if decided then
  if class == 'shutdown' then
    close_here(t, a.id)
    return { 'OK', a.id, answer, value, turn }
  end
  if turn ~= '' then interrupt_here(t, a.id) end
  if call('XLEN', key('sq', t)) > 0 then
    promote(t)
    make_ready(t, 'new')
  else
    make_idle(t)
  end
  return { 'OK', a.id, answer, value, turn }
end

local role, belongs, starts = 'op', '', ''
if answer == 'started' then
  role, belongs = 'start', a.id
  begin_turn(t, a.id, a.kind, a.schema, int(a.submitted_at))
  put(t, 'prio', a.prio)
elseif answer == 'steered' then
  role, belongs = 'steer', turn
elseif class == 'turn_or_op' or class == 'message' then
  starts = a.kind
elseif class ~= 'op' then
  role, belongs = 'control', turn
end
if class == 'shutdown' then put(t, 'closing', '1') end
call('XADD', key('sq', t), '*', 'i', a.id, 'c', role, 'u', belongs, 'k', starts, 'o', a.op, 'm', int(a.submitted_at), 's', ARGV[2])
if lease then
  ring_holder(t)
elseif status ~= 'queued' then
  make_ready(t, status == 'parked' and 'unparked' or nil)
end
return { 'OK', a.id, answer, value, turn }
