-- Makes threads of silent workers ready, and parked ones whose time has come. -> OK, reaped, ready, running
local reaped = {}
-- After a restart no lease was renewed while the server was down: give their holders one TTL to come back.
local uptime = tonumber(string.match(call('INFO', 'server'), 'uptime_in_seconds:(%d+)'))
if uptime * 1000 >= a.ttl then
  for _, thread in ipairs(call('ZRANGEBYSCORE', P .. 'leases', '-inf', int(NOW), 'LIMIT', 0, a.limit)) do
    drop_lease(thread)
    drop_live(thread)
    call('HINCRBY', key('st', thread), 'fence', 1)
    if st(thread, 'turn')[1] ~= '' then
      call('HINCRBY', key('st', thread), 'crashes', 1)
      make_ready(thread, 'worker_lost')
    elseif call('XLEN', key('sq', thread)) > 0 then
      make_ready(thread, 'new')
    else
      make_idle(thread)
    end
    reaped[#reaped + 1] = thread
  end
end
for _, thread in ipairs(call('ZRANGEBYSCORE', P .. 'parked', '-inf', int(NOW), 'LIMIT', 0, a.limit)) do make_ready(thread, 'unparked') end
local ready = 0
for _, tenant in ipairs(call('ZRANGE', P .. 'tenants', 0, -1)) do ready = ready + call('ZCARD', key('ready', tenant)) end
return { 'OK', reaped, ready, call('ZCARD', P .. 'leases') }
