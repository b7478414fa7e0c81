-- withdraw: take announcements out of the registry of live workers.
--
-- KEYS  1 workers
-- ARGV  1 worker · 2 the announcement that was seen, empty when whichever is there shall go · 3… the same of others
--
-- Answers how many went. An announcement that changed since it was seen stays: its worker lives.
-- Refuses WRONGKEYTYPE key.

local function withdraw(keys, argv)
  local workers = keys[1]
  if wrong_type(workers, 'hash') then return refuse('WRONGKEYTYPE', workers) end
  local gone = 0
  for i = 1, #argv, 2 do
    if argv[i + 1] == '' or redis.call('HGET', workers, argv[i]) == argv[i + 1] then
      gone = gone + redis.call('HDEL', workers, argv[i])
    end
  end
  return gone
end

register('withdraw', withdraw, {'allow-oom'})
