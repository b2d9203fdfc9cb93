# A store that lies: the last part of a key says how. Says its port, and serves until its input ends.
import re, sys, threading, urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

# Every 16 bytes say where they are.
TRUE = b''.join(b'%015d\n' % i for i in range(65536))
OTHER = TRUE.replace(b'\n', b'!')
LIES = ['norange', 'otherrange', 'shorter', 'cut', 'closed', 'longer', 'nolength', 'empty', 'twice', 'replaced', 'error', 'elsewhere', 'endless']
OBJECTS = {name: TRUE for name in LIES + ['honest', 'busy']}
OBJECTS.update({'both': b'file', 'both/below': b'below', 'hollow': b'', 'x' * 300: b'long', 'bell\x07 and\nline': b'odd'})
seen = {'replaced': 0, 'busy': 0}


class Store(BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'

    def log_message(self, *_):
        pass

    def answer(self, code, body=b'', headers=(), length=True, head=False):
        self.send_response(code)
        for key, value in headers:
            self.send_header(key, value)
        if length is None:
            self.send_header('Connection', 'close')
            self.close_connection = True
        else:
            self.send_header('Content-Length', str(len(body) if length is True else length))
        self.end_headers()
        if not head:
            self.wfile.write(body)

    def do_HEAD(self):
        self.go(True)

    def do_GET(self):
        self.go(False)

    def go(self, head):
        url = urllib.parse.urlparse(self.path)
        query = dict(urllib.parse.parse_qsl(url.query))
        key = urllib.parse.unquote(url.path).split('/', 2)[2:]
        if not key or not key[0]:
            self.spelt = urllib.parse.quote if query.get('encoding-type') == 'url' else str
            return self.list(query)
        name = key[0]
        if name not in OBJECTS:
            return self.answer(404, head=head)
        data, tag = OBJECTS[name], ('ETag', '"one"')
        if head:
            lengths = {'nolength': None, 'empty': 0, 'twice': len(data) * 2}
            return self.answer(200, data, [tag], lengths.get(name, True), True)
        asked = self.headers.get('range')
        first, last = 0, len(data) - 1
        if asked:
            first, last = map(int, re.match(r'bytes=(\d+)-(\d+)', asked).groups())
            last = min(last, len(data) - 1)
            if first >= len(data):
                return self.answer(416)
        body, ranged = data[first:last + 1], ('Content-Range', 'bytes %d-%d/%d' % (first, last, len(data)))
        if name == 'norange':
            return self.answer(200, data, [tag])
        if name == 'otherrange':
            return self.answer(206, data[:len(body)], [tag, ('Content-Range', 'bytes 0-%d/%d' % (len(body) - 1, len(data)))])
        if name == 'shorter':
            half = len(body) // 2
            return self.answer(206, body[:half], [tag, ('Content-Range', 'bytes %d-%d/%d' % (first, first + half - 1, len(data)))])
        if name == 'cut':
            self.answer(206, body[:len(body) // 2], [tag, ranged], len(body))
            self.close_connection = True
            return None
        if name == 'closed':
            return self.answer(206, body[:len(body) // 2], [tag, ranged], None)
        if name == 'longer':
            return self.answer(206, body + b'more', [tag, ranged])
        if name == 'endless':
            self.answer(206, body, [tag, ranged], None)
            try:
                while True:
                    self.wfile.write(body)
            except OSError:
                return None
        if name == 'error':
            return self.answer(206, b'<Error><Code>InternalError</Code></Error>', [tag, ranged])
        if name == 'elsewhere':
            return self.answer(307, b'', [('Location', '/bucket/honest')])
        if name == 'replaced':
            seen['replaced'] += 1
            if seen['replaced'] > 1:
                body, tag = OTHER[first:last + 1], ('ETag', '"two"')
                if self.headers.get('if-match', '') != '"two"' and seen['replaced'] % 2:
                    return self.answer(412)
        if name == 'busy':
            seen['busy'] += 1
            if seen['busy'] % 2:
                return self.answer(503, b'<Error><Code>SlowDown</Code></Error>')
        return self.answer(206 if asked else 200, body, [tag, ranged] if asked else [tag])

    def list(self, query):
        prefix, token = query.get('prefix', ''), query.get('continuation-token')
        if prefix.startswith('endless'):
            return self.listing(prefix, [], [], 'again')
        if prefix.startswith('unsized'):
            return self.listing(prefix, ['unsized/a'], [], None, False)
        keys, folders = [], []
        for key in sorted(OBJECTS):
            if not key.startswith(prefix):
                continue
            rest = key[len(prefix):]
            if '/' in rest and 'delimiter' in query:
                folders.append(prefix + rest.split('/')[0] + '/')
            else:
                keys.append(key)
        return self.listing(prefix, keys[:int(query.get('max-keys', '1000'))], folders, None)

    def listing(self, prefix, keys, folders, token, sized=True):
        text = '<?xml version="1.0"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>bucket</Name>' \
            '<Prefix>%s</Prefix><IsTruncated>%s</IsTruncated>' % (self.spelt(prefix), 'true' if token else 'false')
        if self.spelt is not str:
            text += '<EncodingType>url</EncodingType>'
        if token:
            text += '<NextContinuationToken>%s</NextContinuationToken>' % token
        for key in keys:
            size = '<Size>%d</Size>' % len(OBJECTS.get(key, b'')) if sized else ''
            text += '<Contents><Key>%s</Key><LastModified>2030-01-01T00:00:00.000Z</LastModified>%s</Contents>' % (self.spelt(key), size)
        for key in folders:
            text += '<CommonPrefixes><Prefix>%s</Prefix></CommonPrefixes>' % self.spelt(key)
        self.answer(200, (text + '</ListBucketResult>').encode(), [('Content-Type', 'application/xml')])


server = ThreadingHTTPServer(('127.0.0.1', 0), Store)
server.daemon_threads = True
threading.Thread(target=server.serve_forever, daemon=True).start()
print(server.server_port, flush=True)
sys.stdin.read()
