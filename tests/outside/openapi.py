"""Calls the example `openapi` with the client generated from its document, and prints how many calls succeeded."""

import io
import sys

from sightings_client import AuthenticatedClient, Client
from sightings_client.api.sightings import add_photo, create_sighting, list_sightings, remove_sighting, show_sighting
from sightings_client.models import Bird, NewSighting, Photo, Problem
from sightings_client.types import File

base = sys.argv[1]
anybody = Client(base_url=base)
warden = AuthenticatedClient(base_url=base, token="let me in")
stranger = AuthenticatedClient(base_url=base, token="let me out")
calls = 0


def expect(response, status):
    global calls
    calls += 1
    assert response.status_code == status, (response.status_code, response.content)
    return response.parsed


new = NewSighting(bird=Bird.KESTREL, place="on the church")
refused = expect(create_sighting.sync_detailed(client=stranger, body=new), 401)
assert isinstance(refused, Problem) and refused.type_.endswith("no-warden"), refused
made = expect(create_sighting.sync_detailed(client=warden, body=new), 201)
assert made.id == 1 and made.bird is Bird.KESTREL and made.count == 1, made
hobby = NewSighting(bird=Bird.HOBBY, place="above the lake", count=3)
assert expect(create_sighting.sync_detailed(client=warden, body=hobby), 201).count == 3
assert len(expect(list_sightings.sync_detailed(client=anybody), 200)) == 2
assert [one.place for one in expect(list_sightings.sync_detailed(client=anybody, bird=Bird.HOBBY), 200)] == ["above the lake"]
assert len(expect(list_sightings.sync_detailed(client=anybody, limit=1), 200)) == 1
photo = Photo(author="Ada", file=File(payload=io.BytesIO(b"\x01\x02\x03"), file_name="a.jpg", mime_type="image/jpeg"))
stored = expect(add_photo.sync_detailed(1, client=anybody, body=photo), 200)
assert (stored.author, stored.bytes_) == ("Ada", 3), stored
expect(remove_sighting.sync_detailed(1, client=warden), 204)
missing = expect(show_sighting.sync_detailed(1, client=anybody), 404)
assert isinstance(missing, Problem) and "no sighting 1" in missing.detail, missing
print(calls)
