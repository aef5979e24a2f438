-- Gives the lease back if there is nothing to do. -> IDLE | ACTIVE (a turn is) | MORE (a submission waits) | FENCED
local refused = guard('release')
if refused then return refused end
if st(a.thread, 'turn')[1] ~= '' then return { 'ACTIVE' } end
if call('XLEN', key('sq', a.thread)) > 0 then return { 'MORE' } end
drop_lease(a.thread)
make_idle(a.thread)
remember('release', 'IDLE')
return { 'IDLE' }
