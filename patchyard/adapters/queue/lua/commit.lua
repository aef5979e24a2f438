-- Appends records under the lease. Repeating it is harmless. -> OK | CLOSED | FENCED | GAP, next ordinal
local refused = guard(a.close and 'close' or nil)
if refused then return refused end
write()
if a.close then
  remember('close', 'CLOSED')
  drop_lease(a.thread)
  close_thread(a.thread)
  return { 'CLOSED' }
end
return { 'OK' }
