-- Reads without changing anything. `a.what`: state | inbox | lines | snapshot | dirty
local t = a.thread
local function lines() return call('XRANGE', key('eq', t), '(' .. int(a.after + 1) .. '-0', '+', 'COUNT', a.limit) end

if a.what == 'state' then return { 'OK', call('HGETALL', key('st', t)), call('XLEN', key('sq', t)) } end

if a.what == 'inbox' then
  local h = st(t, 'fence', 'turn')
  if h[1] ~= a.fence or not has_lease(t) then return { 'FENCED' } end
  local found = {}
  for _, e in ipairs(entries(t, '(' .. a.seen)) do found[#found + 1] = { e.sid, e.i, e.s, e.u } end
  return { 'OK', found, h[2] }
end

if a.what == 'lines' then return { 'OK', lines() } end

if a.what == 'snapshot' then
  local h = st(t, 'tenant', 'trimmed', 'next', 'status')
  local newest = call('XREVRANGE', P .. 'fire', '+', '-', 'COUNT', 1)
  local page, open, complete = lines(), {}, 1
  if #page == a.limit then complete = 0 end
  local live = key('live', t)
  local flat = complete == 1 and call('HGETALL', live) or {}
  for i = 1, #flat, 2 do open[#open + 1] = { flat[i], flat[i + 1], call('GET', live .. ':' .. flat[i]) or '' } end
  return { 'OK', page, { 'tenant', h[1] or '', 'trimmed', h[2] or '-1', 'next', h[3] or '0', 'status', h[4] or 'idle',
    'position', newest[1] and newest[1][1] or '0-0' }, complete, open }
end

local found = {}
local flat = call('ZRANGE', P .. 'dirty', 0, a.limit - 1, 'WITHSCORES')
for i = 1, #flat, 2 do
  local h = st(flat[i], 'tenant', 'trimmed', 'next', 'status')
  found[#found + 1] = { flat[i], flat[i + 1], { 'tenant', h[1], 'trimmed', h[2], 'next', h[3], 'status', h[4] } }
end
return { 'OK', found }
