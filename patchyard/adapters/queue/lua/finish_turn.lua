-- Ends the active turn. `a.keep`: the lease is kept although nothing waits.
-- -> IDLE (lease given back) | MORE (lease kept), next active turn | CLOSED | STEER (nothing written) | WRONG_TURN | FENCED | GAP
local refused = guard('finish')
if refused then return refused end
local turn = st(a.thread, 'turn')[1]
if turn ~= a.turn then return { 'WRONG_TURN', turn } end

local consumed = {}
for _, sid in ipairs(a.consumed or {}) do consumed[sid] = true end
for _, e in ipairs(entries(a.thread)) do
  if e.c == 'steer' and e.u == a.turn and not consumed[e.sid] then return { 'STEER' } end
end

write()
-- Its own input has nothing left to do. What else was meant for it keeps its place: the worker still owes each an answer.
for _, e in ipairs(entries(a.thread)) do
  if e.i == a.turn then call('XDEL', key('sq', a.thread), e.sid) end
end
end_turn(a.thread, turn)
local answer = 'MORE'
if a.close then
  answer = 'CLOSED'
  drop_lease(a.thread)
  close_thread(a.thread)
elseif call('XLEN', key('sq', a.thread)) == 0 and not a.keep then
  answer = 'IDLE'
  drop_lease(a.thread)
  make_idle(a.thread)
else
  promote(a.thread)
end
remember('finish', answer)
return { answer, st(a.thread, 'turn')[1] }
