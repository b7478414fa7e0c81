-- commit: apply one numbered batch of an owner's commits, whole or not at all.
--
-- Under this name the server refuses it while memory is full, so it is what takes work in. The same function has a second
-- name, finish, under which it runs also then: for batches that only end, park or record what was taken in before.
--
-- KEYS  1 owner · 2 due · 3 runnable · 4 inbox · 5 answer channel · 6 undecodable · 7… the streams, lists, results and
--       hashes that the operations name by position
-- ARGV  1 epoch · 2 token · 3 batch number · 4 serial · 5 serial of the batch that this one is built on, 0 for the first
--       6 a letter for the type of each key from 2 on: s stream, x outbox, which is a stream, l list, h hash, z sorted
--       set, t set, - not written, or whatever is there
--       7… operations, each a letter and its fixed arguments:
--         a k n f v …    append to stream k an entry of n strings (fields and values)
--         s k value ms   set result k, kept for ms
--         e k ms         let key k expire after ms
--         h k field v    write a field of hash k
--         x k number m   append message m to outbox k as entry number-1
--         y k number     drop the entries of outbox k up to a number; an empty one goes
--         t k ms         drop the entries of stream k that are older than ms; of very many the oldest ones only
--         k k            drop stream k as a whole
--         n k ms member  enter a member into sorted set k, due in ms
--         o k member     take it out of sorted set k
--         q k id lane    enter invocation id at the tail of lane list k; the lane becomes runnable
--         f k id lane    enter it at the head (a resumed holder of the lane)
--         u k id lane    take it out of lane list k; a lane without open invocations stops being runnable
--         r k n id … 0|1 lane
--                        lane list k holds these n ids and nothing else; the lane is runnable or not, as it says
--         w lane         the lane is runnable
--         l lane         the lane is parked: not runnable
--         d id ms        the invocation is due in ms
--         c id           it is not due any more
--         i entry        an inbox entry is done with
--         b bytes        keep undecodable bytes, the newest ones and for a while
--         j k ms member  note in sorted set k that member was used ms from now; 0 for just now
--         z k member ms  take member out of sorted set k, unless it was used after that time
--         g k field      delete a field of hash k, if the z before it took its member out
--         G k field      delete a field of hash k
--         m k member     add to set k
--         v k member     take out of set k
--         p message      announce an answer
--
-- Answers the partition's time in milliseconds. A number at or below the last one applied is answered from the ring and
-- writes nothing.
-- Refuses FENCED (another tenure), GAP (a number above last + 1, or a batch that is built on another than the last one),
-- SCHEMA, WRONGKEYTYPE position key (a name may hold bytes that no error message keeps, so its position leads; also an
-- outbox that has an entry of a number that is to be written); all before the first write.

local ARITY = {
  s = 4, e = 3, h = 4, t = 3, k = 2, n = 4, o = 3, x = 4, y = 3, q = 4, f = 4, u = 4, w = 2, l = 2, d = 3, c = 2, i = 2,
  b = 2, p = 2, j = 4, z = 4, g = 3, G = 3, m = 3, v = 3
}
-- All trims of a batch together drop so many entries at most: the next ones go with the trims to come.
local TRIMMED = 2000
local left_to_trim = TRIMMED
-- So many undecodable entries are kept, and none of them for longer than a month after the last one came.
local UNDECODABLE, UNDECODABLE_MS = 200, 2592000000

-- Operations with a number of strings: what they have beside these.
local BESIDE = {a = 3, r = 5}

-- How many arguments the operation at i takes, its letter included.
local function width(argv, i)
  local beside = BESIDE[argv[i]]
  return beside and beside + tonumber(argv[i + 2]) or ARITY[argv[i]]
end

local apply = {}

function apply.s(keys, argv, i) redis.call('SET', keys[tonumber(argv[i + 1])], argv[i + 2], 'PX', argv[i + 3]) end
function apply.e(keys, argv, i) redis.call('PEXPIRE', keys[tonumber(argv[i + 1])], argv[i + 2]) end
function apply.h(keys, argv, i) redis.call('HSET', keys[tonumber(argv[i + 1])], argv[i + 2], argv[i + 3]) end
function apply.x(keys, argv, i)
  redis.call('XADD', keys[tonumber(argv[i + 1])], argv[i + 2] .. '-1', 'm', argv[i + 3])
end
function apply.y(keys, argv, i)
  redis.call('XTRIM', keys[tonumber(argv[i + 1])], 'MINID', argv[i + 2] .. '-2')
  if redis.call('XLEN', keys[tonumber(argv[i + 1])]) == 0 then redis.call('DEL', keys[tonumber(argv[i + 1])]) end
end
function apply.t(keys, argv, i, now)
  local stream, oldest = keys[tonumber(argv[i + 1])], int(now - tonumber(argv[i + 2]))
  if left_to_trim <= 0 then return end
  if redis.call('XLEN', stream) > left_to_trim then
    left_to_trim = left_to_trim - redis.call('XTRIM', stream, 'MINID', '~', oldest, 'LIMIT', left_to_trim)
  else
    left_to_trim = left_to_trim - redis.call('XTRIM', stream, 'MINID', oldest)
  end
end
function apply.k(keys, argv, i) redis.call('UNLINK', keys[tonumber(argv[i + 1])]) end
function apply.n(keys, argv, i, now)
  redis.call('ZADD', keys[tonumber(argv[i + 1])], int(now + tonumber(argv[i + 2])), argv[i + 3])
end
function apply.o(keys, argv, i) redis.call('ZREM', keys[tonumber(argv[i + 1])], argv[i + 2]) end
function apply.q(keys, argv, i)
  redis.call('RPUSH', keys[tonumber(argv[i + 1])], argv[i + 2])
  redis.call('SADD', keys[3], argv[i + 3])
end
function apply.f(keys, argv, i)
  redis.call('LPUSH', keys[tonumber(argv[i + 1])], argv[i + 2])
  redis.call('SADD', keys[3], argv[i + 3])
end
function apply.u(keys, argv, i)
  local list = keys[tonumber(argv[i + 1])]
  redis.call('LREM', list, 1, argv[i + 2])
  if redis.call('EXISTS', list) == 0 then redis.call('SREM', keys[3], argv[i + 3]) end
end
function apply.j(keys, argv, i, now)
  redis.call('ZADD', keys[tonumber(argv[i + 1])], int(now + tonumber(argv[i + 2])), argv[i + 3])
end
-- What is deleted for not having been used is looked at here once more: its owner decided on an older reading.
local was_taken_out = false
function apply.z(keys, argv, i)
  local index, member = keys[tonumber(argv[i + 1])], argv[i + 2]
  local used = redis.call('ZSCORE', index, member)
  was_taken_out = used and tonumber(used) <= tonumber(argv[i + 3])
  if was_taken_out then redis.call('ZREM', index, member) end
end
function apply.g(keys, argv, i)
  if was_taken_out then redis.call('HDEL', keys[tonumber(argv[i + 1])], argv[i + 2]) end
  was_taken_out = false
end
function apply.G(keys, argv, i) redis.call('HDEL', keys[tonumber(argv[i + 1])], argv[i + 2]) end
function apply.m(keys, argv, i) redis.call('SADD', keys[tonumber(argv[i + 1])], argv[i + 2]) end
function apply.v(keys, argv, i) redis.call('SREM', keys[tonumber(argv[i + 1])], argv[i + 2]) end
function apply.w(keys, argv, i) redis.call('SADD', keys[3], argv[i + 1]) end
function apply.l(keys, argv, i) redis.call('SREM', keys[3], argv[i + 1]) end
function apply.d(keys, argv, i, now) redis.call('ZADD', keys[2], int(now + tonumber(argv[i + 2])), argv[i + 1]) end
function apply.c(keys, argv, i) redis.call('ZREM', keys[2], argv[i + 1]) end
function apply.i(keys, argv, i) redis.call('XDEL', keys[4], argv[i + 1]) end
function apply.b(keys, argv, i, _, id)
  redis.call('XADD', keys[6], 'MAXLEN', UNDECODABLE, id, 'm', argv[i + 1])
  redis.call('PEXPIRE', keys[6], UNDECODABLE_MS)
end
function apply.p(keys, argv, i) redis.call('SPUBLISH', keys[5], argv[i + 1]) end

function apply.a(keys, argv, i, _, id)
  local count = tonumber(argv[i + 2])
  redis.call('XADD', keys[tonumber(argv[i + 1])], id, unpack(argv, i + 3, i + 2 + count))
end

function apply.r(keys, argv, i)
  local list, count = keys[tonumber(argv[i + 1])], tonumber(argv[i + 2])
  local after = i + 3 + count
  redis.call('DEL', list)
  for each = i + 3, after - 1 do redis.call('RPUSH', list, argv[each]) end
  if argv[after] == '1' then
    redis.call('SADD', keys[3], argv[after + 1])
  else
    redis.call('SREM', keys[3], argv[after + 1])
  end
end

-- The answer that was given to a batch before, or a refusal when the ring no longer holds it.
local function answered_before(owner, number, serial)
  local kept = redis.call('HGET', owner, 'a' .. (number % RING)) or ''
  local kept_number, kept_serial, kept_time = string.match(kept, '^(%d+):(%d+):(%d+)$')
  if tonumber(kept_number) ~= number or kept_serial ~= serial then
    return refuse('FENCED', 'batch ' .. number .. ' was applied with another content')
  end
  return tonumber(kept_time)
end

-- Whether a key is absent or of the type of a letter. The length of a key of another type is an error, and asking for
-- it costs half as much as asking for the type, which every batch does for all of its keys.
local fits = {}
function fits.s(keys, position) return type(redis.pcall('XLEN', keys[position])) == 'number' end
function fits.x(keys, position) return type(redis.pcall('XLEN', keys[position])) == 'number' end
function fits.l(keys, position) return type(redis.pcall('LLEN', keys[position])) == 'number' end
function fits.h(keys, position) return type(redis.pcall('HLEN', keys[position])) == 'number' end
function fits.z(keys, position) return type(redis.pcall('ZCARD', keys[position])) == 'number' end
function fits.t(keys, position) return type(redis.pcall('SCARD', keys[position])) == 'number' end

local function mistyped(keys, letters)
  for position = 1, #letters do
    local letter = string.sub(letters, position, position)
    if fits[letter] and not fits[letter](keys, 1 + position) then return 1 + position end
  end
end

-- The position of an outbox that has an entry of the first number that is to be appended to it, or of a later one: that
-- append would fail half-way through the batch.
local function taken_number(keys, argv)
  local i, seen = 7, {}
  while i <= #argv do
    local verb = argv[i]
    if verb == 'x' and not seen[argv[i + 1]] then
      seen[argv[i + 1]] = true
      local position = tonumber(argv[i + 1])
      if #redis.call('XRANGE', keys[position], argv[i + 2] .. '-1', '+', 'COUNT', 1) > 0 then return position end
    end
    i = i + width(argv, i)
  end
end

local function commit(keys, argv)
  local owner = keys[1]
  local held = redis.pcall('HMGET', owner, 'epoch', 'token', 'batch', 'time', 'offset', 'schema', 'serial')
  if held['err'] then return refuse('WRONGKEYTYPE', '1 ' .. owner) end
  if held[1] ~= argv[1] or held[2] ~= argv[2] then return refuse('FENCED', 'epoch ' .. tostring(held[1])) end
  if held[6] ~= SCHEMA then return refuse('SCHEMA', tostring(held[6])) end
  local number, last = tonumber(argv[3]), tonumber(held[3])
  if number <= last then return answered_before(owner, number, argv[4]) end
  -- The number alone does not tell a batch from one that was built on a refused batch and arrives late, from a
  -- connection that was cut: the refused number has been given to other content by then.
  if number > last + 1 or held[7] ~= argv[5] then return refuse('GAP', int(last)) end
  local foreign = mistyped(keys, argv[6])
  if not foreign and string.find(argv[6], 'x', 1, true) then foreign = taken_number(keys, argv) end
  if foreign then return refuse('WRONGKEYTYPE', foreign .. ' ' .. keys[foreign]) end

  local now = partition_time(held[4], held[5])
  local stamp = int(now)
  local i, id = 7, stamp .. '-*'
  left_to_trim = TRIMMED
  while i <= #argv do
    apply[argv[i]](keys, argv, i, now, id)
    i = i + width(argv, i)
  end
  redis.call('HSET', owner, 'batch', argv[3], 'serial', argv[4], 'time', stamp,
    'a' .. (number % RING), argv[3] .. ':' .. argv[4] .. ':' .. stamp)
  return now
end

register('commit', commit)
register('finish', commit, {'allow-oom'})
