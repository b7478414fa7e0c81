-- restored: declare that a partition's data were put back from a copy, so that what was written since may be missing.
--
-- KEYS  1 owner
-- ARGV  1 since when, in milliseconds of the server's clock · 2 for how many from now on · 3 random bytes
--
-- Answers {doubt from, doubt until, history}; nothing for a partition that nobody has owned yet.
-- It ends the tenure, as a hand-over does: its holder has a history in memory that may be another one than this, and the
-- next one begins from what is here.
-- Refuses SCHEMA, WRONGKEYTYPE key.

local function restored(keys, argv)
  local owner = keys[1]
  if wrong_type(owner, 'hash') then return refuse('WRONGKEYTYPE', owner) end
  local held = redis.call('HMGET', owner, 'schema', 'epoch', 'time', 'offset', 'doubt_from', 'doubt_until')
  if not held[2] then return {} end
  if held[1] ~= SCHEMA then return refuse('SCHEMA', tostring(held[1])) end
  local now = partition_time(held[3], held[4])
  local since = tonumber(argv[1]) + (tonumber(held[4]) or 0)
  local from, till = hull(held[5], held[6], since, now + tonumber(argv[2]))
  -- Named after the tenure that begins it: one of the very first epoch tells that no history was before it.
  local history = new_history((tonumber(held[2]) or 0) + 1, argv[3])
  redis.call('HSET', owner, 'released', '1', 'history', history, 'doubt', 'restored:' .. held[2],
    'doubt_from', int(from), 'doubt_until', int(till))
  redis.call('HDEL', owner, 'token')
  return {from, till, history}
end

register('restored', restored, {'allow-oom'})
