-- announce: say that a worker lives, and hear which others do.
--
-- KEYS  1 workers
-- ARGV  1 worker · 2 its announcement
--
-- Answers {worker, announcement, worker, announcement, …}, its own among them.
-- Refuses WRONGKEYTYPE key.

local function announce(keys, argv)
  local workers = keys[1]
  if wrong_type(workers, 'hash') then return refuse('WRONGKEYTYPE', workers) end
  redis.call('HSET', workers, argv[1], argv[2])
  return redis.call('HGETALL', workers)
end

register('announce', announce, {'allow-oom'})
