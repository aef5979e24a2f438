-- How turns and threads end, and with a turn the agents that it has started. Put between the prelude and each script.

-- After a turn's end the oldest waiting Op that is a turn of its own becomes the active turn.
local function promote(thread)
  for _, e in ipairs(entries(thread)) do
    if e.k and e.k ~= '' then begin_turn(thread, e.i, e.k, '', e.m) return true end
  end
  return false
end

local function close_thread(thread)
  local tenant = st(thread, 'tenant')[1]
  call('DEL', key('sq', thread))
  call('ZREM', key('ready', tenant), thread)
  call('ZREM', P .. 'parked', thread)
  drop_live(thread)
  clear_turn(thread)
  put(thread, 'status', 'closed')
end

-- Whoever waits parked for this thread goes on.
local function wake_parent(thread)
  local h = st(thread, 'parent', 'payer')
  if not h[1] then return end
  local p = st(h[1], 'status', 'turn', 'awaits')
  if p[1] == 'parked' and p[2] == h[2] and string.find(p[3] or '', thread, 1, true) then make_ready(h[1], 'unparked') end
end

local dismiss

-- No agent outlives the turn that has started it. `sid`: the submission on whose account they end.
local function dismiss_agents(thread, sid)
  local agents = call('SMEMBERS', key('agents', thread))
  if #agents == 0 then return end
  call('DEL', key('agents', thread))
  for _, agent in ipairs(agents) do dismiss(agent, sid) end
end

-- What belongs to every end of a turn, whoever writes its terminal event.
local function end_turn(thread, sid)
  clear_turn(thread)
  drop_live(thread)
  put(thread, 'ended', '1')
  dismiss_agents(thread, sid)
  wake_parent(thread)
end

-- What the active turn has used, with its agents, as the members of a terminal event.
local function sums(thread)
  local s = key('st', thread)
  local function sum(name)
    local h = call('HMGET', s, 'u:' .. name, 'f:' .. name)
    return (h[1] or h[2]) and tonumber(h[1] or 0) + tonumber(h[2] or 0)
  end
  local usage = {}
  for _, name in ipairs(TOTALS) do usage[#usage + 1] = '"' .. name .. '":' .. int(sum(name) or 0) end
  local cost = sum('cost')
  return '"usage":{' .. table.concat(usage, ',') .. '},"cost_usd":' .. (cost and string.format('%.17g', cost) or 'null')
    .. ',"model_requests":' .. int(sum('requests') or 0) .. ',"tool_calls":' .. int(sum('calls') or 0)
end

-- Ends the active turn of a thread that no worker holds. Its own input and its steers go; other Ops keep their place.
local function interrupt_here(thread, sid)
  local h = st(thread, 'tenant', 'turn', 'turn_at', 'task', 'ended')
  local tenant, turn = h[1], h[2]
  local dropped, steers = {}, {}
  for _, e in ipairs(entries(thread)) do
    if (e.u == turn or e.i == turn) and e.o ~= 'shutdown' then
      dropped[#dropped + 1] = e.sid
      if e.c == 'steer' then steers[#steers + 1] = cjson.encode(e.i) end
      if e.c == 'control' then
        decide(thread, tenant, '{"type":"op_rejected","op":' .. cjson.encode(e.o)
          .. ',"reason":null,"message":"The turn was interrupted before this could be done."}', e.i, turn)
      end
    end
  end
  for i = 1, #dropped, 500 do call('XDEL', key('sq', thread), unpack(dropped, i, math.min(i + 499, #dropped))) end
  if h[4] and h[4] ~= '' and h[5] ~= '1' then
    decide(thread, tenant, '{"type":"task_status_changed","status":"cancelled","reason":"interrupted","error":null}', sid, turn)
  end
  decide(thread, tenant, '{"type":"turn_interrupted",' .. sums(thread)
    .. ',"duration_ms":' .. int(math.max(0, NOW - (tonumber(h[3]) or NOW)))
    .. ',"dropped_submission_ids":[' .. table.concat(steers, ',') .. ']}', sid, turn)
  end_turn(thread, sid)
end

-- Closes a thread that no worker holds, and answers everything that waits in it.
local function close_here(thread, sid)
  local h = st(thread, 'tenant', 'turn')
  if h[2] ~= '' then interrupt_here(thread, sid) end
  for _, e in ipairs(entries(thread)) do
    if e.o == 'shutdown' then
      sid = e.i
    else
      decide(thread, h[1], '{"type":"op_rejected","op":' .. cjson.encode(e.o)
        .. ',"reason":null,"message":"The thread was closed before this could be done."}', e.i, '')
    end
  end
  decide(thread, h[1], '{"type":"thread_closed"}', sid, '')
  close_thread(thread)
end

-- Ends an agent for good: here, or by a Shutdown for the worker that holds it.
dismiss = function(thread, sid)
  local h = st(thread, 'tenant', 'status', 'closing', 'turn')
  if not h[1] or h[2] == 'closed' then return end
  if not has_lease(thread) then close_here(thread, sid) return end
  if h[3] ~= '1' then
    put(thread, 'closing', '1')
    local text = '{"id":"' .. sid .. '","tenant_id":' .. cjson.encode(h[1]) .. ',"thread_id":"' .. thread
      .. '","op":{"type":"shutdown"},"submitted_at":' .. int(NOW) .. '}'
    call('XADD', key('sq', thread), '*', 'i', sid, 'c', 'control', 'u', h[4], 'k', '', 'o', 'shutdown', 'm', int(NOW), 's', text)
    ring_holder(thread)
  end
  -- Those that it has started itself need not wait until it is gone.
  dismiss_agents(thread, sid)
end
