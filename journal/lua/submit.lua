-- submit: put one request into a partition's inbox. The only function that anybody but the owner calls to change a
-- partition; it decides nothing, the owner does when it takes the entry in.
--
-- KEYS  1 owner · 2 inbox · 3 inbox channel · 4 result of the request's id · 5 invocation stream of the request's id
-- ARGV  1 how many entries the inbox may hold · 2 the request's bytes · 3 how many bytes of memory it may take
-- Answers the id of the new entry, or KNOWN without a write when the id has a result or a stream already: a submission
-- whose answer was lost is sent again under the same id. While the first one still lies in the inbox both lie there, and
-- the owner takes the second for what it is.
-- A partition that nobody has owned yet has no schema and takes entries in.
-- Refuses SCHEMA, WRONGKEYTYPE key, OVERLOADED what; and, as it takes in, everything while memory is full. The same
-- function has a second name, insist, under which it runs also then: for requests that finish something, that only read,
-- or whose first submission may have been applied.

local LARGE = 16384

local function submit(keys, argv)
  local owner, inbox = keys[1], keys[2]
  if wrong_type(owner, 'hash') then return refuse('WRONGKEYTYPE', owner) end
  if wrong_type(inbox, 'stream') then return refuse('WRONGKEYTYPE', inbox) end
  local schema = redis.call('HGET', owner, 'schema')
  if schema and schema ~= SCHEMA then return refuse('SCHEMA', schema) end
  if redis.call('EXISTS', keys[4], keys[5]) > 0 then return {ok = 'KNOWN'} end
  local entries = redis.call('XLEN', inbox)
  if entries >= tonumber(argv[1]) then return refuse('OVERLOADED', entries .. ' requests') end
  -- Small requests alone can't make it large; how much memory it takes is a guess from a few of its nodes.
  if #argv[2] > LARGE then
    local bytes = redis.call('MEMORY', 'USAGE', inbox) or 0
    if bytes + #argv[2] > tonumber(argv[3]) then return refuse('OVERLOADED', int(bytes) .. ' bytes of requests') end
  end
  local entry = redis.call('XADD', inbox, '*', 'm', argv[2])
  redis.call('SPUBLISH', keys[3], entry)
  return entry
end

register('submit', submit)
register('insist', submit, {'allow-oom'})
