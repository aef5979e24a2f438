-- Takes the thread whose turn it is. -> OK, thread, fields of its state | NONE
local asked = key('claim', a.token)
local before = call('GET', asked)   -- the answer to this very call got lost: give it again
if before then return { 'OK', before, call('HGETALL', key('st', before)) } end

local full_repos = {}
local function repo_is_full(tenant, repo)
  if not repo or repo == '' then return false end
  local caps = key('caps:repository', tenant .. '/' .. repo)
  if full_repos[caps] == nil then
    call('ZREMRANGEBYSCORE', caps, '-inf', int(NOW))
    full_repos[caps] = call('ZCARD', caps) >= a.repository_cap
  end
  return full_repos[caps]
end

local function take(tenant, start, thread)
  call('ZREM', key('ready', tenant), thread)
  local h = st(thread, 'fence', 'turn')
  put(thread, 'fence', int(tonumber(h[1]) + 1), 'worker', a.worker, 'status', 'running')
  if h[2] ~= '' then call('HINCRBY', key('st', thread), 'segment', 1) end
  renew(thread, a.ttl)
  drop_live(thread)
  call('ZADD', P .. 'tenants', int(start + 1), tenant)
  call('HSET', P .. 'vt', tenant, int(start + 1), '*', int(start))
  call('SET', asked, thread, 'PX', 60000)
  return { 'OK', thread, call('HGETALL', key('st', thread)) }
end

local tenants = call('ZRANGE', P .. 'tenants', 0, -1, 'WITHSCORES')
for i = 1, #tenants, 2 do
  local tenant, start = tenants[i], tonumber(tenants[i + 1])
  local caps, ready = key('caps:tenant', tenant), key('ready', tenant)
  call('ZREMRANGEBYSCORE', caps, '-inf', int(NOW))
  if call('ZCARD', ready) == 0 then
    call('ZREM', P .. 'tenants', tenant)
  elseif call('ZCARD', caps) < a.tenant_cap then
    local from = 0
    while true do
      local page = call('ZRANGE', ready, from, from + 63)
      for _, thread in ipairs(page) do
        local h = st(thread, 'repo', 'status')
        if h[2] ~= 'queued' then
          call('ZREM', ready, thread)
          from = from - 1
        elseif not repo_is_full(tenant, h[1]) then
          return take(tenant, start, thread)
        end
      end
      if #page < 64 then break end
      from = from + 64
    end
  end
end
return { 'NONE' }
