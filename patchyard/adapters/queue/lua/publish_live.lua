-- Shows live texts of many threads in one call. `a.batches`: {thread, fence, live entries}. ARGV[2..]: head and text of each entry.
local at = 2
for _, batch in ipairs(a.batches) do
  local mine = held(batch[1], batch[2])
  for _, e in ipairs(batch[3]) do
    if mine then publish(batch[1], batch[2], e, ARGV[at], ARGV[at + 1]) end
    at = at + 2
  end
end
return { 'OK' }
