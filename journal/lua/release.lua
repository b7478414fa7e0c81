-- release: hand the partition over, so that the next owner need not wait for the lease.
--
-- KEYS  1 owner
-- ARGV  1 epoch · 2 token
--
-- Answers the epoch; asked again after it was done, the same. The token goes away with the hand-over, so whatever the
-- tenure still had on the wire is refused from then on.
-- Refuses FENCED epoch (another tenure), WRONGKEYTYPE key.

local function release(keys, argv)
  local owner = keys[1]
  if wrong_type(owner, 'hash') then return refuse('WRONGKEYTYPE', owner) end
  local held = redis.call('HMGET', owner, 'epoch', 'token', 'released')
  if held[1] == argv[1] and held[3] == '1' then return tonumber(held[1]) end
  if held[1] ~= argv[1] or held[2] ~= argv[2] then return refuse('FENCED', 'epoch ' .. tostring(held[1])) end
  redis.call('HSET', owner, 'released', '1')
  redis.call('HDEL', owner, 'token')
  return tonumber(held[1])
end

register('release', release, {'allow-oom'})
