-- Renews the leases of one process, with one write per set. -> OK, threads whose lease is lost
local lost, sets = {}, {}
local expiry = int(NOW + a.ttl)
local function add(set, thread)
  sets[set] = sets[set] or {}
  local pairs_of_set = sets[set]
  pairs_of_set[#pairs_of_set + 1] = expiry
  pairs_of_set[#pairs_of_set + 1] = thread
end
for _, pair in ipairs(a.held) do
  local thread = pair[1]
  local h = st(thread, 'fence', 'tenant', 'repo')
  if h[1] == pair[2] and has_lease(thread) then
    add(P .. 'leases', thread)
    add(key('caps:tenant', h[2]), thread)
    if h[3] ~= '' then add(key('caps:repository', h[2] .. '/' .. h[3]), thread) end
  else
    lost[#lost + 1] = thread
  end
end
for set, members in pairs(sets) do
  for i = 1, #members, 1000 do call('ZADD', set, unpack(members, i, math.min(i + 999, #members))) end
end
return { 'OK', lost }
