-- Gives lease and slot back with the turn unfinished: for another worker at once (`a.ready`), or until an answer, a time,
-- or the end of the turn of one of the agents in `a.awaits`.
-- -> READY | PARKED | FENCED | GAP
local refused = guard('park')
if refused then return refused end
write()
drop_lease(a.thread)
drop_live(a.thread)
call('HINCRBY', key('st', a.thread), 'fence', 1)
local answer = 'PARKED'
if a.ready then
  answer = 'READY'
  make_ready(a.thread, 'hand_over')
else
  -- What arrived unseen, and every answer, wakes the turn again, and input one that waits for agents: its wait is over then.
  -- Other Ops that the worker left on purpose do not.
  for _, e in ipairs(entries(a.thread)) do
    if e.c == 'control' or (a.awaits and e.c == 'steer') then answer = 'READY' end
  end
  if #call('XRANGE', key('sq', a.thread), '(' .. (a.seen or '0-0'), '+', 'COUNT', 1) > 0 then answer = 'READY' end
  for _, agent in ipairs(a.awaits or {}) do
    if (st(agent, 'turn')[1] or '') == '' then answer = 'READY' end
  end
  put(a.thread, 'awaits', table.concat(a.awaits or {}, ' '))
  if answer == 'READY' then
    make_ready(a.thread, 'unparked')
  else
    put(a.thread, 'status', 'parked')
    if a['until'] then call('ZADD', P .. 'parked', int(a['until']), a.thread) end
  end
end
remember('park', answer)
return { answer }
