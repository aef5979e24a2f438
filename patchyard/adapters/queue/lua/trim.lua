-- Drops records that the object store has confirmed. -> OK
local h = st(a.thread, 'trimmed', 'next')
if not h[2] then return { 'OK' } end
local through = math.min(a.through, tonumber(h[2]) - 1)
if through > tonumber(h[1]) then
  call('XTRIM', key('eq', a.thread), 'MINID', int(through + 2) .. '-0')
  put(a.thread, 'trimmed', int(through))
  if through == tonumber(h[2]) - 1 then
    call('ZREM', P .. 'dirty', a.thread)
  else
    call('ZADD', P .. 'dirty', int(NOW), a.thread)
  end
end
return { 'OK' }
