-- The one script that writes a region of imds. Atomic: all of a change is there, or none of it.
--
--   EVAL <this file> 1 imds:{REGION} put RECORD set BYTES       publish a record with its user-data
--   EVAL <this file> 1 imds:{REGION} put RECORD keep            publish a record; its user-data stays as it is
--   EVAL <this file> 1 imds:{REGION} put RECORD none            publish a record that has no user-data
--   EVAL <this file> 1 imds:{REGION} remove ID [REVISION]       remove an instance; REVISION is its last one plus 1 unless given
--
-- RECORD is the JSON document of the README. Answers, each a list of strings:
--
--   published REVISION | unchanged REVISION | removed REVISION
--   refused stale REVISION                  the store holds this revision, or removed the instance at it: publish a higher one
--   refused address-owned NETWORK ADDRESS OWNER
--   refused user-data WHY                   the bytes and the record's userData do not belong together
--   refused invalid WHY                     this is not a record (the library checks every field; here only what the script reads)
--
-- Keys and their shapes: src/store/keys.ts.

local base = KEYS[1]
local TOMBSTONE_SECONDS = 7 * 24 * 3600

local function refused(...) return { 'refused', ... } end
local function whole(number) return string.format('%.0f', number) end
local function is_revision(n) return type(n) == 'number' and n >= 1 and n % 1 == 0 and n <= 9007199254740991 end
local function is_table(value) return type(value) == 'table' end

local function known(id)
  local entry = redis.call('HGET', base .. ':instances', id)
  return entry and cjson.decode(entry)
end

local function tombstone_revision(id) return tonumber(redis.call('GET', base .. ':tombstone:' .. id) or nil) end

local function split_address(key) return string.match(key, '^(%S+) (%S+)$') end

-- Takes an instance out of the indexes that its last publish put it in.
local function forget(id, entry)
  for _, key in ipairs(entry.addresses) do
    local network, address = split_address(key)
    if redis.call('HGET', base .. ':addresses:' .. network, address) == id then
      redis.call('HDEL', base .. ':addresses:' .. network, address)
    end
  end
  for _, name in ipairs(entry.hypervisors) do redis.call('HDEL', base .. ':hypervisor:' .. name, id) end
end

-- Tells every hypervisor that holds the instance now, or held it before.
local function notify(id, ...)
  local told = {}
  for _, names in ipairs({ ... }) do
    for _, name in ipairs(names) do
      if not told[name] then redis.call('PUBLISH', base .. ':notices:' .. name, id) end
      told[name] = true
    end
  end
end

-- `network address` of every interface, without prefix lengths.
local function addresses_of(record)
  local addresses = {}
  for _, interface in ipairs(record.interfaces) do
    if not is_table(interface) then return nil end
    for _, list in ipairs({ interface.ipv4Addresses or {}, interface.ipv6Addresses or {} }) do
      if not is_table(list) then return nil end
      for _, address in ipairs(list) do
        if type(address) ~= 'string' then return nil end
        addresses[#addresses + 1] = (interface.network or 'default') .. ' ' .. string.match(address, '^[^/]*')
      end
    end
  end
  return addresses
end

local function put(text, mode, bytes)
  local decoded, record = pcall(cjson.decode, text)
  if not decoded or not is_table(record) then return refused('invalid', 'RECORD is not a JSON object') end
  if record.schema ~= 1 then return refused('invalid', 'schema is not 1') end
  if type(record.id) ~= 'string' or not string.match(record.id, '^srv%-%w+$') then return refused('invalid', 'id is not an id such as srv-x1y2z') end
  if not is_revision(record.revision) then return refused('invalid', 'revision is not a whole number of at least 1') end
  if not is_table(record.interfaces) or not is_table(record.hypervisors) then return refused('invalid', 'interfaces and hypervisors are lists') end
  local addresses = addresses_of(record)
  if not addresses then return refused('invalid', 'interfaces[].ipv4Addresses and ipv6Addresses are lists of strings') end

  local id, instance = record.id, base .. ':instance:' .. record.id
  local expected = is_table(record.userData) and record.userData or nil
  if mode == 'keep' then
    bytes = redis.call('HGET', instance, 'user-data') or nil
    local stored = redis.call('HGET', instance, 'record')
    local before = stored and cjson.decode(stored).userData
    if not is_table(before) then before = nil end
    if (before and before.sha256) ~= (expected and expected.sha256) then return refused('user-data', 'the store holds other user-data than the record tells') end
  elseif mode == 'none' then
    bytes = nil
  elseif mode ~= 'set' or not bytes then
    return refused('invalid', 'say what becomes of the user-data: set BYTES, keep or none')
  end
  if (bytes and #bytes) ~= (expected and expected.size) then return refused('user-data', 'the record tells another size than the bytes have') end

  local digest = redis.sha1hex(text .. '\n' .. (bytes or ''))
  local before = known(id)
  local revision = whole(record.revision)
  local current = before and tonumber(before.revision) or tombstone_revision(id)
  if current and record.revision < current then return refused('stale', whole(current)) end
  if current and record.revision == current then
    if not before or before.digest ~= digest then return refused('stale', whole(current)) end
  end
  for _, key in ipairs(addresses) do
    local network, address = split_address(key)
    if not network then return refused('invalid', 'an address or a network holds white space') end
    local owner = redis.call('HGET', base .. ':addresses:' .. network, address)
    if owner and owner ~= id then return refused('address-owned', network, address, owner) end
  end

  redis.call('SET', base, redis.call('TIME')[1], 'NX')
  if before then forget(id, before) end
  redis.call('DEL', base .. ':tombstone:' .. id, instance)
  redis.call('HSET', instance, 'record', text, 'digest', digest)
  if bytes then redis.call('HSET', instance, 'user-data', bytes) end
  for _, key in ipairs(addresses) do
    local network, address = split_address(key)
    redis.call('HSET', base .. ':addresses:' .. network, address, id)
  end
  for _, name in ipairs(record.hypervisors) do redis.call('HSET', base .. ':hypervisor:' .. name, id, digest) end
  redis.call('HSET', base .. ':instances', id, cjson.encode({
    revision = revision, digest = digest, addresses = addresses, hypervisors = record.hypervisors,
  }))
  notify(id, record.hypervisors, before and before.hypervisors or {})
  return { before and before.digest == digest and 'unchanged' or 'published', revision }
end

local function remove(id, given)
  local before = known(id)
  local current = before and tonumber(before.revision) or tombstone_revision(id) or 0
  local revision = tonumber(given) or (before and current + 1) or math.max(current, 1)
  if not is_revision(revision) then return refused('invalid', 'REVISION is not a whole number of at least 1') end
  if revision < current then return refused('stale', whole(current)) end
  redis.call('SET', base .. ':tombstone:' .. id, whole(revision), 'EX', TOMBSTONE_SECONDS)
  redis.call('DEL', base .. ':instance:' .. id)
  redis.call('HDEL', base .. ':instances', id)
  if before then
    forget(id, before)
    notify(id, before.hypervisors)
  end
  return { before and 'removed' or 'unchanged', whole(revision) }
end

if ARGV[1] == 'put' then return put(ARGV[2], ARGV[3], ARGV[4]) end
if ARGV[1] == 'remove' then return remove(ARGV[2], ARGV[3]) end
return refused('invalid', 'the first argument is put or remove')
