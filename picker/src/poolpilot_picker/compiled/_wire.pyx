# cython: language_level=3, boundscheck=True, nonecheck=True, wraparound=False, cdivision=True, embedsignature=True
"""The wire transport's way of a short message: its frame, the gRPC message in it, what it says, and the frame of the reply.

Does what `extproc/wire/` does in Python, for frames and messages as nearly all are; there are the reasons, and whatever
is not familiar here is done there. Each look at what was read is checked against its end before it is made.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_GetItem
from cpython.object cimport PyObject
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport uint32_t
from libc.string cimport memcpy

ctypedef const unsigned char* Octets

cdef enum:
    DATA = 0
    HEADERS = 1
    RST_STREAM = 3
    END_STREAM = 1
    END_HEADERS = 4
    HEAD_BYTES = 9
    PREFIX_BYTES = 5
    MOST_FRAME_BYTES = 16384
    # ProcessingRequest
    REQUEST_HEADERS = 0x12
    RESPONSE_HEADERS = 0x1A
    REQUEST_BODY = 0x22
    RESPONSE_BODY = 0x2A
    FIRST = 0x0A
    SECOND = 0x12
    THIRD = 0x1A
    # of a chunk's reply, before the chunk
    LONGEST_HEAD = 48
    # of an answer to headers, or to a body, that is written here
    LONGEST_ANSWER = 2048
    # bytes and entries of a cache
    CACHED_BYTES = 512
    CACHED = 1024


@cython.freelist(64)
cdef class Stream:
    """As `Stream` in `extproc/wire/stream.py`."""

    cdef readonly long id
    cdef public object call, direct, left, queue, ending
    cdef public long long credit, window, queued
    cdef public bint remote_over, answered

    def __init__(self, long stream_id, call, long long credit, long long window, left):
        self.id = stream_id
        self.call = call
        self.credit = credit
        self.window = window
        self.left = left


# ── reading ──────────────────────────────────────────────────────────────────

cdef inline Py_ssize_t span(Octets data, Py_ssize_t* at, Py_ssize_t end) noexcept:
    """The length (a varint below 2^28) that stands at `at`, which moves behind it; −1 where there are not so many bytes."""
    cdef Py_ssize_t length, here = at[0]
    cdef int shift = 7
    cdef unsigned char byte
    if here >= end:
        return -1
    length = data[here]
    here += 1
    if length > 0x7F:
        length &= 0x7F
        while True:
            if here >= end or shift > 21:
                return -1
            byte = data[here]
            here += 1
            length |= <Py_ssize_t> (byte & 0x7F) << shift
            if byte <= 0x7F:
                break
            shift += 7
    if length > end - here:
        return -1
    at[0] = here
    return length


cdef inline int flag(Octets data, Py_ssize_t at, Py_ssize_t end, unsigned char tag) noexcept:
    """What is left between two offsets: nothing (0), the flag (1), or something else (−1)."""
    if at == end:
        return 0
    if at + 2 == end and data[at] == tag and data[at + 1] == 1:
        return 1
    return -1


cdef object field_of(Octets data, Py_ssize_t size):
    """(name, value) of a HeaderValue; None: not familiar. May raise UnicodeDecodeError."""
    cdef Py_ssize_t at = 0, length, raw_at = 0, raw_size = 0
    cdef unsigned char tag
    cdef str name = "", text = ""
    while at < size:
        tag = data[at]
        at += 1
        length = span(data, &at, size)
        if length < 0:
            return None
        if tag == FIRST:
            name = PyUnicode_DecodeUTF8(<const char*> data + at, length, NULL).lower()
        elif tag == SECOND:
            text = PyUnicode_DecodeUTF8(<const char*> data + at, length, NULL)
        elif tag == THIRD:
            raw_at, raw_size = at, length
        else:
            return None
        at += length
    if not raw_size:
        return name, text
    try:
        return name, PyUnicode_DecodeUTF8(<const char*> data + raw_at, raw_size, NULL)
    except UnicodeDecodeError:
        return name, (<const char*> data)[raw_at : raw_at + raw_size]


# ── writing ──────────────────────────────────────────────────────────────────

cdef inline Py_ssize_t varint_size(Py_ssize_t value) noexcept:
    cdef Py_ssize_t size = 1
    while value > 0x7F:
        value >>= 7
        size += 1
    return size


cdef inline Py_ssize_t put_part(unsigned char* out, Py_ssize_t at, unsigned char tag, Py_ssize_t length) noexcept:
    """A tag and a length; returns where they end."""
    out[at] = tag
    at += 1
    while length > 0x7F:
        out[at] = length & 0x7F | 0x80
        length >>= 7
        at += 1
    out[at] = <unsigned char> length
    return at + 1


cdef Py_ssize_t put_chunk_head(unsigned char* out, bint request, bint over, Py_ssize_t size) noexcept:
    """All of a full duplex chunk's message but the chunk, which is its last field; returns how many bytes."""
    cdef Py_ssize_t body = (2 if over else 0) + (1 + varint_size(size) + size if size else 0)
    cdef Py_ssize_t streamed = 1 + varint_size(body) + body
    cdef Py_ssize_t mutation = 1 + varint_size(streamed) + streamed
    cdef Py_ssize_t common = 1 + varint_size(mutation) + mutation
    cdef Py_ssize_t at = put_part(out, 0, 0x1A if request else 0x22, common)
    at = put_part(out, at, 0x0A, mutation)
    at = put_part(out, at, 0x1A, streamed)
    at = put_part(out, at, 0x1A, body)
    if over:
        out[at] = 0x10
        out[at + 1] = 1
        at += 2
    if size:
        at = put_part(out, at, 0x0A, size)
    return at


cdef inline void put_frame_head(unsigned char* out, Py_ssize_t length, int kind, int flags, uint32_t stream) noexcept:
    out[0], out[1], out[2] = length >> 16 & 0xFF, length >> 8 & 0xFF, length & 0xFF
    out[3], out[4] = kind, flags
    out[5], out[6], out[7], out[8] = stream >> 24, stream >> 16 & 0xFF, stream >> 8 & 0xFF, stream & 0xFF


cdef class Frames


cdef class Messages:
    """Of one listener: ProcessingRequest messages to the exchange, and its replies into frames.

    Shares the caches of its `RequestReader` and `ReplyWriter`.
    """

    cdef dict _fields, _abouts, _options, _destinations
    cdef object _read_about, _encode, _no_mutation
    cdef tuple _unfamiliar
    cdef object _streamed, _headed, _bodied
    cdef bytes _block
    cdef Py_ssize_t _most
    # What was read last.
    cdef unsigned char _kind
    cdef bint _over
    cdef Py_ssize_t _first, _last
    cdef list _found
    cdef tuple _about

    def __init__(self, reader, writer, replies, bytes block not None, Py_ssize_t most):
        """`replies`: (StreamedReply, HeadersReply, BodyReply, NO_MUTATION); `block`: begins an answer; `most`: bytes of a message."""
        self._fields, self._abouts = reader.fields, reader.abouts
        self._read_about, self._unfamiliar = reader.about, reader.FAILURES
        self._encode, self._options, self._destinations = writer.encode, writer.options, writer.destinations
        self._streamed, self._headed, self._bodied, self._no_mutation = replies
        self._block = block
        self._most = most

    def read(self, bytes data not None, Py_ssize_t at, Py_ssize_t end):
        """As `RequestReader.read` of `data[at:end]`."""
        if not 0 <= at <= end <= PyBytes_GET_SIZE(data):
            raise ValueError(f"a message must lie within {len(data)} bytes, not at {at} to {end}")
        if not self._read(data, at, end):
            return None
        content = self._found if self._kind in (REQUEST_HEADERS, RESPONSE_HEADERS) else data[self._first : self._last]
        return self._kind, content, self._over, self._about

    cdef bint _read(self, bytes message, Py_ssize_t at, Py_ssize_t end) except -1:
        """False: not familiar."""
        cdef Octets data = <Octets> PyBytes_AS_STRING(message)
        cdef Py_ssize_t start = at + 1, length, stop
        cdef int over
        cdef unsigned char kind
        cdef PyObject* known
        if at >= end:
            return False
        kind = data[at]
        if kind not in (REQUEST_HEADERS, RESPONSE_HEADERS, REQUEST_BODY, RESPONSE_BODY):
            return False
        length = span(data, &start, end)
        if length < 0:
            return False
        stop = start + length
        try:
            about = PyBytes_FromStringAndSize(<const char*> data + stop, end - stop)
            known = PyDict_GetItem(self._abouts, about)
            self._about = <tuple?> <object> known if known != NULL else self._read_about(about)
            if kind == REQUEST_BODY or kind == RESPONSE_BODY:
                self._first = self._last = start
                if start < stop and data[start] == FIRST:
                    start += 1
                    length = span(data, &start, stop)
                    if length < 0:
                        return False
                    self._first, self._last = start, start + length
                    start += length
                over = flag(data, start, stop, 0x10)
            else:
                over = self._read_headers(data, start, stop)
        except self._unfamiliar:
            return False
        if over < 0:
            return False
        self._kind, self._over = kind, over
        return True

    cdef int _read_headers(self, Octets data, Py_ssize_t at, Py_ssize_t end) except -2:
        """Whether an HttpHeaders ends its stream (−1: not familiar); its fields are in `_found`."""
        cdef list found = []
        cdef Py_ssize_t stop, length
        cdef PyObject* known
        self._found = found
        if at < end and data[at] == FIRST:
            at += 1
            length = span(data, &at, end)
            if length < 0:
                return -1
            stop = at + length
            while at < stop:
                if data[at] != FIRST:
                    return -1
                at += 1
                length = span(data, &at, stop)
                if length < 0:
                    return -1
                entry = PyBytes_FromStringAndSize(<const char*> data + at, length)
                known = PyDict_GetItem(self._fields, entry)
                if known != NULL:
                    found.append(<object> known)
                else:
                    field = field_of(data + at, length)
                    if field is None:
                        return -1
                    if length <= CACHED_BYTES:
                        if len(self._fields) >= CACHED:
                            self._fields.clear()
                        self._fields[entry] = field
                    found.append(field)
                at += length
        return flag(data, at, end, 0x18)

    cdef int _take(self, Frames frames, Stream stream, bytes data, Py_ssize_t at, Py_ssize_t end) except -1:
        """A message that fills a frame. What fails ends its call, not the connection."""
        call = stream.call
        try:
            self._dispatch(frames, stream, call, data, at, end)
        except Exception:
            call.failed()
        return 0

    cdef int _dispatch(
        self, Frames frames, Stream stream, call, bytes data, Py_ssize_t at, Py_ssize_t end
    ) except -1:
        cdef object exchange = stream.direct
        cdef unsigned char kind
        cdef bint over
        cdef Py_ssize_t first, last
        cdef list fields
        if not self._read(data, at, end):
            call.message(data[at:end])
            return 0
        # What is called now may read another message.
        kind, over, first, last, fields = self._kind, self._over, self._first, self._last, self._found
        modes, metadata, attributes = self._about
        if kind == RESPONSE_BODY and not over and first < last and exchange.passing:
            self._send_chunk(frames, stream, call, False, False, <Octets> PyBytes_AS_STRING(data) + first, last - first)
            return 0
        if modes is not None:
            exchange.set_modes(modes[0], modes[1])
        if kind == RESPONSE_BODY:
            replies = exchange.response_body(data[first:last], over, now=frames.now)
        elif kind == REQUEST_BODY:
            replies = exchange.request_body(data[first:last], over, now=frames.now, metadata=metadata)
        elif kind == REQUEST_HEADERS:
            replies = exchange.request_headers(fields, over, now=frames.now, metadata=metadata)
        else:
            replies = exchange.response_headers(
                fields, over, now=frames.now, attributes=attributes, metadata=metadata
            )
        for reply in replies:
            self._reply(frames, stream, call, reply)
        return 0

    cdef int _reply(self, Frames frames, Stream stream, call, reply) except -1:
        cdef bytes head, body
        if type(reply) is self._streamed:
            chunk = reply.chunk
            if type(chunk) is bytes and not reply.compressed and not reply.without_message:
                self._send_chunk(
                    frames, stream, call, reply.request, reply.end_of_stream,
                    <Octets> PyBytes_AS_STRING(chunk), PyBytes_GET_SIZE(chunk),
                )
                return 0
        elif type(reply) is self._headed and reply.mode_override is None:
            if self._send_common(frames, stream, call, 0x0A if reply.request else 0x12, reply.mutation):
                return 0
        elif type(reply) is self._bodied and reply.body is None:
            if self._send_common(frames, stream, call, 0x1A if reply.request else 0x22, reply.mutation):
                return 0
        head, body = self._encode(reply)
        self._send(
            frames, stream, call,
            <Octets> PyBytes_AS_STRING(head), PyBytes_GET_SIZE(head),
            <Octets> PyBytes_AS_STRING(body), PyBytes_GET_SIZE(body),
        )
        return 0

    cdef bint _send_common(self, Frames frames, Stream stream, call, unsigned char tag, mutation) except -1:
        """A CommonResponse without a body, as `ReplyWriter` has it. False: it is not familiar, or long, and was not sent."""
        cdef unsigned char text[LONGEST_ANSWER]
        cdef Py_ssize_t at, fields = 0, body, common
        cdef PyObject* known
        cdef bytes option, destination = b""
        cdef list options = []
        cdef bint clear = False
        if mutation is not self._no_mutation:
            if mutation.remove_headers:
                return False
            for field in mutation.set_headers:
                known = PyDict_GetItem(self._options, field)
                if known == NULL:
                    return False
                option = <bytes?> <object> known
                fields += PyBytes_GET_SIZE(option)
                options.append(option)
            known = PyDict_GetItem(self._destinations, mutation.destination)
            if known == NULL:
                return False
            destination = <bytes?> <object> known
            clear = mutation.clear_route_cache
        if fields + PyBytes_GET_SIZE(destination) > LONGEST_ANSWER - LONGEST_HEAD:
            return False
        body = (1 + varint_size(fields) + fields if fields else 0) + (2 if clear else 0)
        if not body:
            text[0], text[1] = tag, 0
            at = 2
        else:
            common = 1 + varint_size(body) + body
            at = put_part(text, 0, tag, common)
            at = put_part(text, at, 0x0A, body)
            if fields:
                at = put_part(text, at, 0x12, fields)
                for option in options:
                    memcpy(text + at, PyBytes_AS_STRING(option), PyBytes_GET_SIZE(option))
                    at += PyBytes_GET_SIZE(option)
            if clear:
                text[at], text[at + 1] = 0x28, 1
                at += 2
        memcpy(text + at, PyBytes_AS_STRING(destination), PyBytes_GET_SIZE(destination))
        self._send(frames, stream, call, text, at + PyBytes_GET_SIZE(destination), NULL, 0)
        return True

    cdef int _send_chunk(
        self, Frames frames, Stream stream, call, bint request, bint over, Octets chunk, Py_ssize_t size
    ) except -1:
        cdef unsigned char head[LONGEST_HEAD]
        cdef Py_ssize_t length = put_chunk_head(head, request, over, size)
        return self._send(frames, stream, call, head, length, chunk, size)

    cdef int _send(
        self, Frames frames, Stream stream, call, Octets head, Py_ssize_t length, Octets body, Py_ssize_t size
    ) except -1:
        """A message in two parts, as one frame where it is short and the windows let it through."""
        cdef Py_ssize_t whole = length + size + PREFIX_BYTES
        cdef long long window
        cdef object data
        cdef unsigned char* out
        sender = frames.sender
        if stream.ending is not None:
            return 0
        if whole <= MOST_FRAME_BYTES and stream.queue is None and whole <= stream.window:
            window = sender.window
            if whole <= window:
                if not stream.answered:
                    self._begin(frames, stream)
                sender.window = window - whole
                stream.window -= whole
                data = PyBytes_FromStringAndSize(NULL, HEAD_BYTES + whole)
                out = <unsigned char*> PyBytes_AS_STRING(data)
                put_frame_head(out, whole, DATA, 0, <uint32_t> stream.id)
                out[9], whole = 0, whole - PREFIX_BYTES
                out[10], out[11], out[12], out[13] = whole >> 24, whole >> 16 & 0xFF, whole >> 8 & 0xFF, whole & 0xFF
                memcpy(out + HEAD_BYTES + PREFIX_BYTES, head, length)
                if size:
                    memcpy(out + HEAD_BYTES + PREFIX_BYTES + length, body, size)
                frames.out.append(data)
                return 0
        call.send((<const char*> head)[:length], (<const char*> body)[:size] if size else b"")
        return 0

    cdef int _begin(self, Frames frames, Stream stream) except -1:
        """The header block that begins an answer."""
        cdef unsigned char head[HEAD_BYTES]
        if not frames.connection.table_said:
            frames.connection.send_head(stream, self._block)
            return 0
        stream.answered = True
        put_frame_head(head, PyBytes_GET_SIZE(self._block), HEADERS, END_HEADERS, <uint32_t> stream.id)
        frames.out.append((<const char*> head)[:HEAD_BYTES] + self._block)
        return 0


# ── frames ───────────────────────────────────────────────────────────────────

cdef class Frames:
    """Of one connection: handles the frames that are as nearly all are, until there is another one."""

    cdef object connection, sender, accept, closed, no_call, now
    cdef dict streams, blocks
    cdef list out
    cdef Messages messages
    cdef long long low, stream_low, stream_window
    cdef Py_ssize_t most_streams
    cdef readonly Py_ssize_t at
    """Where the first frame begins that was not handled."""
    cdef readonly Py_ssize_t turns
    """How many more may be handled."""

    def __init__(self, connection, Messages messages, dict blocks not None, limits, no_call):
        """`messages`: None where calls read their own; `blocks`: what header blocks meant that were read before."""
        self.connection, self.sender, self.streams = connection, connection.sender, connection.streams
        self.accept, self.closed = connection.accept, connection.ended
        self.no_call = no_call
        self.out = connection.sender.out
        self.messages = messages
        self.blocks = blocks
        self.low, self.stream_low = limits.connection_window >> 1, limits.stream_window >> 1
        self.stream_window, self.most_streams = limits.stream_window, limits.max_streams

    def run(self, bytes data not None, Py_ssize_t at, Py_ssize_t turns, long long credit):
        """Handles familiar frames of `data` from `at` on. Takes and returns the credit of the connection.

        To be asked only while no header block is unfinished, and once the peer's first SETTINGS came.
        """
        cdef Octets text = <Octets> PyBytes_AS_STRING(data)
        cdef Py_ssize_t size = PyBytes_GET_SIZE(data), start, end, length
        cdef unsigned int kind, flags
        cdef uint32_t number
        cdef PyObject* known
        cdef Stream stream
        if at < 0:
            raise ValueError(f"frames must begin within the data, not at {at}")
        self.at, self.turns = at, turns
        connection = self.connection
        self.now = connection.now
        while self.turns > 0:
            at = self.at
            start = at + HEAD_BYTES
            if start > size:
                break
            length = <Py_ssize_t> text[at] << 16 | <Py_ssize_t> text[at + 1] << 8 | text[at + 2]
            kind, flags = text[at + 3], text[at + 4]
            end = start + length
            if length > MOST_FRAME_BYTES or end > size or text[at + 5] > 0x7F:
                break
            number = (
                <uint32_t> text[at + 5] << 24 | <uint32_t> text[at + 6] << 16
                | <uint32_t> text[at + 7] << 8 | text[at + 8]
            )
            if kind == HEADERS:
                if flags != END_HEADERS or not self._begins(number, data[start:end], end):
                    break
            else:
                known = PyDict_GetItem(self.streams, number)
                if known == NULL:
                    break
                stream = <Stream?> <object> known
                if kind == DATA:
                    if (
                        flags > END_STREAM or not length and not flags or stream.remote_over or stream.left is not None
                        or credit - length < self.low or stream.credit - length < self.stream_low
                    ):
                        break
                    self.at, self.turns = end, self.turns - 1
                    credit -= length
                    stream.credit -= length
                    if flags:
                        stream.remote_over = True
                    if not length:
                        pass
                    elif (
                        stream.direct is not None and self.messages is not None
                        and holds_message(text + start, length, self.messages._most)
                    ):
                        self.messages._take(self, stream, data, start + PREFIX_BYTES, end)
                    else:
                        stream.call.data(data[start:end])
                    if flags:
                        stream.call.over()
                elif kind == RST_STREAM and length == 4 and stream.answered:
                    self.at, self.turns = end, self.turns - 1
                    self._reset(stream)
                else:
                    break
            if not connection.open:
                break
        return credit

    cdef bint _begins(self, uint32_t number, bytes block, Py_ssize_t end) except -1:
        """A new stream with a header block that was seen before. False: another kind of stream; nothing is done."""
        connection = self.connection
        cdef PyObject* known = PyDict_GetItem(self.blocks, block)
        if known == NULL or not number & 1 or number <= <long long> connection.last_id:
            return False
        section = <object> known
        if section.problem or connection.closing or len(self.streams) >= self.most_streams:
            return False
        self.at, self.turns = end, self.turns - 1
        connection.last_id = number
        cdef Stream stream = Stream(
            number, self.no_call, self.stream_window, self.sender.initial_window, section.content_length
        )
        self.streams[number] = stream
        call = self.accept(connection, stream, section)
        if stream.ending is None:
            stream.call = call
        else:
            call.closed()
        return True

    cdef int _reset(self, Stream stream) except -1:
        """The peer gives up a stream that was answered."""
        connection = self.connection
        if connection.closing or stream.queue is not None:
            connection.drop(stream)
            return 0
        del self.streams[stream.id]
        self.closed.append(stream.id)
        call, stream.call, stream.direct = stream.call, self.no_call, None
        if stream.ending is None:
            stream.ending = b""
        call.closed()
        if not self.streams:
            connection.idle_since = self.now
        return 0


cdef inline bint holds_message(Octets data, Py_ssize_t length, Py_ssize_t most) noexcept:
    """Whether a frame is one whole message, not compressed, of at most so many bytes."""
    cdef Py_ssize_t size = length - PREFIX_BYTES
    if size < 0 or size > most or data[0]:
        return False
    return size == (
        <Py_ssize_t> data[1] << 24 | <Py_ssize_t> data[2] << 16 | <Py_ssize_t> data[3] << 8 | data[4]
    )
