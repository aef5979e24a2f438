-- Renews the leases of one process. -> OK, threads whose lease is lost
local lost = {}
for _, pair in ipairs(a.held) do
  if held(pair[1], pair[2]) then renew(pair[1], a.ttl) else lost[#lost + 1] = pair[1] end
end
return { 'OK', lost }
