-- restored: declare that a partition's data were put back from a copy, so that what was written since may be missing.
--
-- KEYS  1 owner
-- ARGV  1 since when, in milliseconds of the server's clock · 2 for how many from now on · 3 random bytes
--       4 partition count of the type
--
-- Answers {doubt from, doubt until, history}. A partition of which the copy has nothing is in doubt, too: it gets an
-- owner hash that says so, as if its first owner had handed it over.
-- It ends the tenure, as a hand-over does: its holder has a history in memory that may be another one than this, and the
-- next one begins from what is here.
-- Refuses SCHEMA, WRONGKEYTYPE key.

local function restored(keys, argv)
  local owner = keys[1]
  if wrong_type(owner, 'hash') then return refuse('WRONGKEYTYPE', owner) end
  local held = redis.call('HMGET', owner, 'schema', 'epoch', 'time', 'offset', 'doubt_from', 'doubt_until')
  if held[1] and held[1] ~= SCHEMA then return refuse('SCHEMA', held[1]) end
  if not held[1] and redis.call('HLEN', owner) > (held[4] and 1 or 0) then return refuse('WRONGKEYTYPE', owner) end
  if not held[2] then
    held[2] = '1'
    redis.call('HSET', owner, 'schema', SCHEMA, 'partitions', argv[4], 'epoch', '1', 'lease', '0', 'batch', '0',
      'serial', '0')
  end
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
